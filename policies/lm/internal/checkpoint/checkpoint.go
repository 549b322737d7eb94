// Package checkpoint reads and writes folders of the Hugging Face layout (decoders of the Llama, Qwen2 and Qwen3 kind, and PEFT's LoRA
// adapters of these) and the engine's own snapshots. It takes only what the engine computes exactly as the reference does: whatever
// else a folder asks for is refused in one line that names the file and the field or tensor. Files are not trusted: no memory is
// allocated because a header claims something, only for bytes that are there.
package checkpoint
