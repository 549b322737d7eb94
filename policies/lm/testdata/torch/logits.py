"""Answers each line of JSON that names a checkpoint, {"model", "adapter", "merge", "tokens"}, with the logits at each token, or an error."""

import json
import sys

import torch
import transformers
from peft import PeftModel

transformers.utils.logging.disable_progress_bar()


def logits(model, tokens, adapter="", merge=False):
    m, info = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    for what, names in info.items():
        if names:
            raise ValueError(f"{what}: {names}")
    if adapter:
        m = PeftModel.from_pretrained(m, adapter)
        if merge:
            m = m.merge_and_unload(safe_merge=True)
    with torch.no_grad():
        return m.eval()(torch.tensor([tokens])).logits[0].tolist()


for line in sys.stdin:
    try:
        answer = {"logits": logits(**json.loads(line))}
    except Exception as e:  # noqa: BLE001
        answer = {"error": f"{type(e).__name__}: {e}"}
    print(json.dumps(answer), flush=True)
