"""Convert a GGUF file into a folder that `transformers` loads by its path alone (run as a child process).

In:    GGUF file, empty target folder (arguments).
Out:   config, generation config, tokenizer with chat template, bfloat16 weights in the folder;
       one line `DONE/TOTAL STEP` on stdout after each step.
Why a child process: torch and its thread pools never enter the process that drives the demo, and their memory is
given back.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

STEPS = ("import torch", "read the tokenizer", "read and de-quantize the weights", "convert", "write the weights")


def main(arguments: list[str]) -> int:
    """Convert `arguments[0]` (GGUF) into the folder `arguments[1]`; return the exit code."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    convert(Path(arguments[0]), Path(arguments[1]))
    return 0


def convert(gguf: Path, target: Path) -> None:
    """Write the converted model into `target`."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    _report(0)
    folder, name = str(gguf.parent), gguf.name
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    _report(1)
    # `save_pretrained` of this model is refused ("quantized with GGUF"): its weights go into a fresh one.
    loaded = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    _report(2)
    config = AutoConfig.from_pretrained(folder, gguf_file=name)
    model = _fresh_model(config, loaded.state_dict(), torch.bfloat16)
    _report(3)
    # Its end-of-turn token is the model's end of sequence; greedy decoding keeps the demo's texts repeatable.
    model.generation_config = GenerationConfig(
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
        do_sample=False,
    )
    tokenizer.model_max_length = config.max_position_embeddings
    tokenizer.save_pretrained(target)
    model.save_pretrained(target)
    _report(4)


def _fresh_model(config: Any, weights: dict[str, Any], dtype: Any) -> Any:
    from transformers import AutoModelForCausalLM

    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.name_or_path = ""
    config.architectures = ["LlamaForCausalLM"]
    model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    model.load_state_dict(weights)
    model.tie_weights()
    return model


def _report(step: int) -> None:
    sys.stdout.write(f"{step + 1}/{len(STEPS)} {STEPS[step]}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
