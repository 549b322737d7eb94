"""Trains or samples as ../../speed_test.go asks, in lines of JSON. The first says with what, each other one is a batch of equal rows."""

import json
import sys
import time
import warnings

import peft
import torch
import transformers

transformers.utils.logging.disable_progress_bar()
warnings.simplefilter("ignore", FutureWarning)  # of peft's use of transformers


def peak():
    """The most memory that was in use, in bytes. (getrusage would count that of whoever started us.)"""
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) << 10 for line in f if line.startswith("VmHWM:"))


class Trainer:
    def __init__(self, model, adapter, rate):
        if adapter:
            model = peft.PeftModel.from_pretrained(model, adapter, is_trainable=True)
        self.model = model.train()
        self.weights = [p for p in model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.weights, lr=rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=0, fused=True)

    def work(self, tokens, new):
        loss = self.model(input_ids=tokens, labels=tokens, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


class Sampler:
    def __init__(self, model):
        self.model = model.eval()
        model.generation_config = transformers.GenerationConfig(do_sample=True, temperature=1.0, top_k=0, top_p=1.0, pad_token_id=0)

    def work(self, tokens, new):
        with torch.inference_mode():
            out = self.model.generate(input_ids=tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=new)
        assert out.shape == (tokens.shape[0], tokens.shape[1] + new)
        return 0.0


def main():
    setup = json.loads(sys.stdin.readline())
    if setup["threads"]:
        torch.set_num_threads(setup["threads"])
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_pretrained(setup["model"], dtype=getattr(torch, setup["dtype"]), attn_implementation="sdpa")
    worker = Trainer(model, setup["adapter"], setup["rate"]) if setup["rate"] else Sampler(model)
    for line in sys.stdin:
        batch = json.loads(line)
        tokens = torch.tensor(batch["tokens"])
        begin = time.perf_counter()
        loss = worker.work(tokens, batch["new"])
        seconds = time.perf_counter() - begin
        print(json.dumps({"seconds": seconds, "loss": loss, "peak": peak(), "threads": torch.get_num_threads()}), flush=True)


main()
