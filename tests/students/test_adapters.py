import json
import sys

import pytest
import torch
from checkpoints_on_disk import same_parameters, write_checkpoint
from exact import assert_exact
from peft import LoraConfig, PromptTuningConfig, get_peft_model

from forkleft.errors import ForkLeftError
from forkleft.students import Student, load_student, merge
from forkleft.students.adapters import CONFIG, note_base
from forkleft.students.loading import SIDECAR, write_sidecar

IDS = torch.tensor([[5, 9, 40, 7]])


def train_adapters(base, output, seed=0, **settings) -> Student:
    """Random adapters on a base, saved as the trainer does; the student with the adapters live in its modules."""
    student = load_student(base, **settings)
    torch.manual_seed(seed)
    config = LoraConfig(r=2, target_modules=["q_proj", "down_proj"], lora_alpha=16, init_lora_weights=False)
    get_peft_model(student.model, config).save_pretrained(output)
    note_base(output, student.origin.source)
    student.tokenizer.save_pretrained(output)
    write_sidecar(output, student)
    return student


def logits(student):
    with torch.no_grad():
        return student.model(IDS).logits


@pytest.mark.parametrize("kind", ["llada", "bd3lm", "fast-dllm-v2"])
def test_adapters_load_as_the_whole_model_that_they_make_of_their_base(tmp_path, kind, monkeypatch):
    written = write_checkpoint(tmp_path / "base", kind)
    monkeypatch.chdir(tmp_path)
    adapted = train_adapters("base", tmp_path / "adapters", dtype=torch.float64, **written.settings)
    # From another folder, and without the settings that the base alone would need.
    monkeypatch.chdir("/")
    student = load_student(tmp_path / "adapters", dtype=torch.float64)
    assert (student.family, student.vocabulary) == (adapted.family, adapted.vocabulary)
    assert_exact(logits(student), logits(adapted))
    assert (logits(student) - written.stock.double()(IDS).logits).abs().max() > 0.1
    # A stock model again, which can be trained and saved like any other.
    assert {name for name, _ in student.model.named_parameters()} == {
        name for name, _ in written.stock.named_parameters()
    }
    assert all(parameter.requires_grad for parameter in student.model.parameters())
    assert not student.model.training and not hasattr(student.model, "peft_config")


def test_merged_adapters_are_a_checkpoint_in_the_format_of_the_base(tmp_path):
    written = write_checkpoint(tmp_path / "base", "llada")
    train_adapters(tmp_path / "base", tmp_path / "adapters")
    merge(tmp_path / "adapters", tmp_path / "whole")
    assert {path.name for path in (tmp_path / "whole").iterdir()} == {
        path.name for path in (*written.folder.iterdir(), tmp_path / SIDECAR)
    }
    assert json.loads((tmp_path / "whole" / "config.json").read_text()) == written.config
    # Added up in float32 as when they are loaded, whose sums are tested in float64.
    whole, loaded = (load_student(tmp_path / name) for name in ("whole", "adapters"))
    assert same_parameters(whole.model, loaded.model)
    assert not same_parameters(whole.model, load_student(tmp_path / "base").model)
    with pytest.raises(ForkLeftError, match="whole is not an empty folder; name a new one"):
        merge(tmp_path / "adapters", tmp_path / "whole")
    with pytest.raises(ForkLeftError, match="whole holds a whole model, no adapters that could be merged"):
        merge(tmp_path / "whole", tmp_path / "other")
    merge(tmp_path / "adapters", tmp_path / "small", dtype=torch.bfloat16)
    small = load_student(tmp_path / "small")
    for name, parameter in whole.model.named_parameters():
        assert torch.equal(small.model.get_parameter(name), parameter.bfloat16().float())


def test_adapters_of_adapters(tmp_path):
    write_checkpoint(tmp_path / "base", "sdar")
    once = train_adapters(tmp_path / "base", tmp_path / "one", seed=1, dtype=torch.float64)
    twice = train_adapters(tmp_path / "one", tmp_path / "two", seed=2, dtype=torch.float64)
    student = load_student(tmp_path / "two", dtype=torch.float64)
    assert_exact(logits(student), logits(twice))
    assert (logits(student) - logits(once)).abs().max() > 0.1
    (tmp_path / "one" / CONFIG).write_text(json.dumps({"base_model_name_or_path": str(tmp_path / "two")}))
    with pytest.raises(ForkLeftError, match="names adapters that are built on it as their base"):
        load_student(tmp_path / "two")


def test_half_precision(tmp_path):
    write_checkpoint(tmp_path / "base", "sdar")
    train_adapters(tmp_path / "base", tmp_path / "adapters")
    exact, half = (load_student(tmp_path / "adapters", dtype=dtype) for dtype in (torch.float32, torch.bfloat16))
    assert {parameter.dtype for parameter in half.model.parameters()} == {torch.bfloat16}
    for name, parameter in exact.model.named_parameters():
        # Of the base, of the adapters and of their sum: at most half a unit in the last place each, and a carry.
        bound = 3 * 2**-8 * parameter.abs().clamp(min=parameter.abs().max() / 4)
        assert ((half.model.get_parameter(name).float() - parameter).abs() <= bound).all()


def test_a_base_that_is_not_found_is_named(tmp_path, monkeypatch):
    base = write_checkpoint(tmp_path / "base", "sdar").folder
    train_adapters(base, tmp_path / "adapters")
    base.rename(tmp_path / "moved")
    with pytest.raises(
        ForkLeftError, match=rf"adapters of {base}, which is not found: .*write its place into .*{CONFIG}"
    ):
        load_student(tmp_path / "adapters")
    note_base(tmp_path / "adapters", str(tmp_path / "moved"))
    load_student(tmp_path / "adapters")
    fields = json.loads((tmp_path / "adapters" / CONFIG).read_text())
    for name in (None, ""):
        (tmp_path / "adapters" / CONFIG).write_text(json.dumps(fields | {"base_model_name_or_path": name}))
        with pytest.raises(ForkLeftError, match="does not say of which base; write that there as base_model_name"):
            load_student(tmp_path / "adapters")


def test_a_base_of_the_hub_is_noted_with_its_revision(tmp_path, monkeypatch):
    base = write_checkpoint(tmp_path / "base", "sdar").folder
    adapted = train_adapters(base, tmp_path / "adapters", dtype=torch.float64)
    note_base(tmp_path / "adapters", "owner/name@v2")
    fields = json.loads((tmp_path / "adapters" / CONFIG).read_text())
    assert (fields["base_model_name_or_path"], fields["revision"], fields["r"]) == ("owner/name", "v2", 2)
    asked = []

    def snapshot_download(name, *, revision, allow_patterns):
        asked.append((name, revision))
        return str(base)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    student = load_student(tmp_path / "adapters", dtype=torch.float64)
    assert asked == [("owner/name", "v2")]
    assert_exact(logits(student), logits(adapted))


def test_adapters_that_others_made(tmp_path):
    """Nothing lies beside them: family, mask, ends and tokenizer are the base's, or as the user says."""
    written = write_checkpoint(tmp_path / "base", "bd3lm")
    adapted = train_adapters(tmp_path / "base", tmp_path / "adapters", **written.settings)
    for path in (tmp_path / "adapters").iterdir():
        if not path.name.startswith("adapter_"):
            path.unlink()
    with pytest.raises(ForkLeftError, match="bd3lm"):
        load_student(tmp_path / "adapters")
    student = load_student(tmp_path / "adapters", **written.settings)
    assert (student.family, student.vocabulary) == (adapted.family, adapted.vocabulary)


def test_adapters_that_do_not_fit(tmp_path):
    write_checkpoint(tmp_path / "base", "sdar")
    train_adapters(tmp_path / "base", tmp_path / "adapters")
    weights = tmp_path / "adapters" / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-20])
    with pytest.raises(
        ForkLeftError, match=r"cannot be added to Qwen3ForCausalLM: .*; were they trained on another base"
    ):
        load_student(tmp_path / "adapters")
    weights.unlink()
    with pytest.raises(ForkLeftError, match=r"no adapter_model.safetensors: it is not whole"):
        load_student(tmp_path / "adapters")
    weights.write_bytes(whole)
    fields = json.loads((tmp_path / "adapters" / CONFIG).read_text())
    for changes, message in (
        ({"r": 3}, "cannot be added to Qwen3ForCausalLM"),
        ({"target_modules": ["q_proj", "up_proj"]}, r"missing or unexpected: .*up_proj.*down_proj|down_proj.*up_proj"),
    ):
        (tmp_path / "adapters" / CONFIG).write_text(json.dumps(fields | changes))
        with pytest.raises(ForkLeftError, match=message):
            load_student(tmp_path / "adapters")
    student = load_student(tmp_path / "base")
    get_peft_model(student.model, PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)).save_pretrained(
        tmp_path / "prompt"
    )
    note_base(tmp_path / "prompt", str(tmp_path / "base"))
    with pytest.raises(ForkLeftError, match=r"the adapters in .*prompt cannot be added to"):
        load_student(tmp_path / "prompt")


def test_a_folder_with_both_is_ambiguous(tmp_path):
    write_checkpoint(tmp_path / "base", "sdar")
    train_adapters(tmp_path / "base", tmp_path / "base")
    with pytest.raises(ForkLeftError, match=rf"a whole model \(config.json\) as well as adapters \({CONFIG}\); move"):
        load_student(tmp_path / "base")


def test_without_peft_the_extra_is_named(tmp_path, monkeypatch):
    write_checkpoint(tmp_path / "base", "sdar")
    train_adapters(tmp_path / "base", tmp_path / "adapters")
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ForkLeftError, match=r"pip install 'forkleft\[lora\]'"):
        load_student(tmp_path / "adapters")
