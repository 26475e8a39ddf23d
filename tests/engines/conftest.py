"""Fixtures: a started recorder with all hooks applied, and a tiny random Llama with a byte-level tokenizer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from tailspan import asgi
from tailspan.engines import transformers as engine
from tailspan.recorder import process
from tailspan.settings import WORKER_DIR, Settings
from tests.engines.recorded import Recorded

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAILSPAN_STRICT", "1")


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorded]:
    """Everything that the hooks record in this test."""
    directory = tmp_path / "worker"
    directory.mkdir(mode=0o700)
    monkeypatch.setenv(WORKER_DIR, str(directory))
    process.start(Settings.from_environment())
    patchers = [asgi.patcher(), engine.patcher()]
    for patcher in patchers:
        patcher.apply()
    yield Recorded(directory)
    for patcher in reversed(patchers):
        patcher.undo()
    process.close()


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """A byte-level tokenizer with a chat template; ids 0 to 255 are bytes, 256 ends a text, 257 pads."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*alphabet, "<|end|>", "<|pad|>"])}
    bytes_only = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.decoder = decoders.ByteLevel()
    wrapped = PreTrainedTokenizerFast(tokenizer_object=bytes_only, eos_token="<|end|>", pad_token="<|pad|>")
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def make_model(layers: int = 2, seed: int = 0) -> Any:
    """Return a random Llama of a few thousand weights; it never ends a text by itself."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    torch.set_num_threads(1)
    config = LlamaConfig(
        vocab_size=258,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=257,
    )
    model = LlamaForCausalLM(config).eval()
    model.generation_config.pad_token_id = 257
    return model


@pytest.fixture(scope="session")
def model() -> Any:
    """The tiny model."""
    return make_model()
