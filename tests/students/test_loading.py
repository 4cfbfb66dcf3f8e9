import json
import logging
import sys
from pathlib import Path

import pytest
import torch
from checkpoints_on_disk import (
    END,
    KINDS,
    TEMPLATE,
    TURN_END,
    same_parameters,
    write_autoregressive,
    write_checkpoint,
    write_weights,
)
from exact import assert_exact

from forkleft.errors import ForkLeftError
from forkleft.manifests import MANIFEST, write_manifest
from forkleft.prompts import prompt_ids
from forkleft.rollout import generate
from forkleft.students import Family, Student, load_student, loading, save_student

RECIPES = Path(__file__).parents[2] / "recipes"

IDS = torch.tensor([[5, 9, 250, 3, 40, 7, 256, 19]])


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_loads_as_the_stock_model_of_its_tensors(tmp_path, kind, tied, shards):
    written = write_checkpoint(tmp_path / kind, kind, shards=shards, tied=tied)
    student = load_student(written.folder, **written.settings)
    assert student.family == written.family
    assert (student.vocabulary.mask_id, student.vocabulary.stop_ids) == (written.mask_id, written.stop_ids)
    assert type(student.model) is type(written.stock)
    assert same_parameters(student.model, written.stock)
    assert (student.model.lm_head.weight is student.model.model.embed_tokens.weight) is tied
    assert not student.model.training and all(parameter.requires_grad for parameter in student.model.parameters())
    with torch.no_grad():
        ours, theirs = student.model.double()(IDS).logits, written.stock.double()(IDS).logits
    assert_exact(ours, theirs)
    assert ours.std() > 0.5  # predictions that say something


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_student_generates(tmp_path, kind):
    written = write_checkpoint(tmp_path / kind, kind)
    student = load_student(written.folder, **written.settings)
    prompt = student.tokenizer.encode("What is 6 * 7?", add_special_tokens=False)
    by_hand = Student.from_model(
        written.stock, written.family, written.mask_id, written.stop_ids, tokenizer=student.tokenizer
    )
    one, two = (generate(model, [prompt], max_new_tokens=12, passes=2)[0] for model in (student, by_hand))
    assert one.tokens == two.tokens
    assert len(one.tokens) > 0 and written.mask_id not in one.tokens and max(one.tokens) < 283


def test_dtype_and_device(tmp_path):
    written = write_checkpoint(tmp_path, "sdar")
    student = load_student(tmp_path, dtype=torch.bfloat16, device="cpu")
    assert {parameter.dtype for parameter in student.model.parameters()} == {torch.bfloat16}
    assert torch.equal(student.model.lm_head.weight, written.tensors["lm_head.weight"].bfloat16())
    # The rotary frequencies stay exact whatever the parameters are in.
    assert student.model.model.rotary_emb.inv_freq.dtype is torch.float32


def test_what_the_user_says_wins(tmp_path):
    write_checkpoint(tmp_path, "sdar")
    student = load_student(tmp_path, block_size=16, mask_token="<|box_start|>")
    assert student.family == Family("block", 16, "absolute") and student.vocabulary.mask_id == 261
    own = Family("full", 8)
    assert load_student(tmp_path, family=own).family == own
    assert load_student(tmp_path, family="bd3lm").family == Family("block", 4, "prompt_end_backward")


def test_the_block_size_of_the_checkpoint_wins_over_the_familys(tmp_path):
    written = write_checkpoint(tmp_path, "sdar")
    (tmp_path / "config.json").write_text(json.dumps(written.config | {"block_size": 64}))
    assert load_student(tmp_path).family == Family("block", 64, "absolute")
    written = write_checkpoint(tmp_path / "fast", "fast-dllm-v2")
    assert load_student(written.folder, block_size=8).family == Family("block", 8, "absolute", "shifted")


def test_a_stock_folder_with_a_sidecar_needs_nothing_more(tmp_path):
    stock = write_autoregressive(tmp_path)
    facts = {"attention": "block", "block_size": 16, "anchor": "prompt_end", "head": "same"}
    sidecar = {"family": None, **facts, "mask_id": 300, "stop_ids": [TURN_END]}
    (tmp_path / loading.SIDECAR).write_text(json.dumps(sidecar))
    student = load_student(tmp_path)
    assert student.family == Family("block", 16) and student.vocabulary.stop_ids == (TURN_END,)
    assert student.vocabulary.mask_id == 300 and same_parameters(student.model, stock)
    assert load_student(tmp_path, block_size=4, mask_token=301).vocabulary.mask_id == 301
    (tmp_path / loading.SIDECAR).write_text(json.dumps({"family": None}))
    with pytest.raises(ForkLeftError, match=r"forkleft_student.json is damaged \(it lacks attention\)"):
        load_student(tmp_path)


def test_stop_ids_follow_the_chat_template_that_is_given(tmp_path):
    """References end with the first of them."""
    written = write_checkpoint(tmp_path / "edlm", "efficient-dlm")
    assert load_student(written.folder, **written.settings).vocabulary.stop_ids == (END,)
    student = load_student(written.folder, **written.settings, chat_template=TEMPLATE)
    assert student.vocabulary.stop_ids == (TURN_END, END) and student.tokenizer.chat_template == TEMPLATE
    (tmp_path / "own.jinja").write_text(TEMPLATE)
    again = load_student(written.folder, **written.settings, chat_template=tmp_path / "own.jinja")
    assert again.vocabulary == student.vocabulary
    # What a sidecar lists stays, behind what the new template ends turns with.
    save_student(load_student(written.folder, **written.settings), tmp_path / "saved")
    assert load_student(tmp_path / "saved").vocabulary.stop_ids == (END,)
    assert load_student(tmp_path / "saved", chat_template=TEMPLATE).vocabulary.stop_ids == (TURN_END, END)
    with pytest.raises(ForkLeftError, match="cannot be the mask: it stands in the chat template"):
        load_student(written.folder, mask_token="<|box_end|>", chat_template="<|box_end|>{{ messages }}")


def test_the_template_for_efficient_dlm_is_the_question_as_it_is(tmp_path):
    """As its model card tokenizes what the user says."""
    written = write_checkpoint(tmp_path, "efficient-dlm")
    student = load_student(tmp_path, **written.settings, chat_template=RECIPES / "templates" / "efficient-dlm.jinja")
    question = "What is 6 * 7?\nPlease reason step by step, and put your final answer within \\boxed{}."
    ids = prompt_ids(student.tokenizer, [{"role": "user", "content": question}])
    assert ids == student.tokenizer(question).input_ids
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]
    assert student.tokenizer.decode(prompt_ids(student.tokenizer, turns)) == "Be brief.\n\n1+1?"


def test_the_mask_of_efficient_dlm_is_not_guessed(tmp_path):
    write_checkpoint(tmp_path, "efficient-dlm")
    with pytest.raises(
        ForkLeftError, match=r"neither tokenizer nor configuration .* candidates: '<\|mask_token\|>' \(282\)"
    ):
        load_student(tmp_path)


def test_a_mask_without_a_row_is_an_error(tmp_path):
    """An autoregressive checkpoint has no row for a mask token that is not in its tokenizer."""
    write_autoregressive(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    tensors = write_checkpoint(tmp_path / "other", "bd3lm", tied=True).tensors
    tensors["model.embed_tokens.weight"] = tensors["model.embed_tokens.weight"][:282].clone()
    write_weights(tmp_path, tensors)
    (tmp_path / "config.json").write_text(json.dumps(config | {"vocab_size": 282}))
    with pytest.raises(ForkLeftError, match="mask id 282 is outside the model's 282 embeddings"):
        load_student(tmp_path, family="bd3lm")


def test_without_a_generation_config_the_configuration_names_the_end(tmp_path):
    written = write_checkpoint(tmp_path, "llada")
    (tmp_path / "generation_config.json").unlink()
    assert load_student(tmp_path).vocabulary.stop_ids == written.stop_ids
    written = write_checkpoint(tmp_path / "edlm", "efficient-dlm")
    assert load_student(written.folder, **written.settings).vocabulary.stop_ids == (END,)


@pytest.mark.parametrize("kind", ["dream", "sdar", "efficient-dlm"])
def test_code_in_the_folder_is_never_imported(tmp_path, kind):
    """Booby traps in every place where Transformers would look for code; they would leave a file behind."""
    written = write_checkpoint(tmp_path / "model", kind)
    trap = tmp_path / "sprung"
    code = f"open({str(trap)!r}, 'w').close()\n"
    names = ("modeling_x", "configuration_x", "tokenization_x")
    for path in (*written.folder.glob("*.py"), *(written.folder / f"{name}.py" for name in names)):
        path.write_text(code)
    maps = {"AutoConfig": "configuration_x.C", "AutoModel": "modeling_x.M", "AutoModelForCausalLM": "modeling_x.M"}
    (written.folder / "config.json").write_text(json.dumps(written.config | {"auto_map": maps}))
    path = written.folder / "tokenizer_config.json"
    fields = json.loads(path.read_text()) | {"auto_map": {"AutoTokenizer": ["tokenization_x.T", "tokenization_x.T"]}}
    for tokenizer_class in (fields.pop("tokenizer_class"), "T", None):
        path.write_text(json.dumps(fields | ({"tokenizer_class": tokenizer_class} if tokenizer_class else {})))
        for trust in (False, True):
            load_student(written.folder, **written.settings, trust_remote_code=trust)
    assert not trap.exists()
    assert not any("modeling_x" in name or "tokenization_x" in name for name in sys.modules)


def test_a_tokenizer_that_needs_its_own_code_runs_it_only_if_trusted(tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    written = write_checkpoint(tmp_path / "model", "sdar")
    trap = tmp_path / "run"
    (written.folder / "tokenizer.json").rename(written.folder / "data.json")
    (written.folder / "tokenization_qwen2.py").write_text(
        "from transformers import PreTrainedTokenizerFast\n"
        f"open({str(trap)!r}, 'w').close()\n"
        "class Qwen2Tokenizer(PreTrainedTokenizerFast):\n"
        "    def __init__(self, **settings):\n"
        f"        super().__init__(**settings | {{'tokenizer_file': {str(written.folder / 'data.json')!r}}})\n"
    )
    with pytest.raises(ForkLeftError, match=r"needs its own code \(\['tokenization_qwen2.Qwen2Tokenizer', None\]\)"):
        load_student(written.folder)
    assert not trap.exists()
    student = load_student(written.folder, trust_remote_code=True)
    assert trap.exists() and student.vocabulary.mask_id == written.mask_id
    assert student.tokenizer.encode("<|im_end|>", add_special_tokens=False) == [TURN_END]


def test_a_folder_without_a_tokenizer(tmp_path):
    written = write_checkpoint(tmp_path, "llada")
    (written.folder / "tokenizer.json").write_text("{")
    with pytest.raises(ForkLeftError, match=r"the tokenizer in .* cannot be read"):
        load_student(tmp_path)
    (written.folder / "tokenizer.json").unlink()
    with pytest.raises(ForkLeftError, match=r"has no tokenizer: expected tokenizer.json, or vocab.json and merges.txt"):
        load_student(tmp_path)


def test_an_autoregressive_checkpoint_points_to_convert(tmp_path):
    write_autoregressive(tmp_path)
    with pytest.raises(ForkLeftError, match=r"'qwen3' is that of an autoregressive checkpoint.*`forkleft convert`"):
        load_student(tmp_path)


def test_ambiguous_and_unknown_families(tmp_path):
    written = write_checkpoint(tmp_path, "bd3lm")
    with pytest.raises(ForkLeftError, match=r"family bd3lm or mdlm \(--family"):
        load_student(tmp_path)
    with pytest.raises(ForkLeftError, match="unknown family 'opd'; there are efficient-dlm, sdar"):
        load_student(tmp_path, family="opd")
    with pytest.raises(ForkLeftError, match="; did you mean bd3lm"):
        load_student(tmp_path, family="bd3")
    (tmp_path / "config.json").write_text(json.dumps(written.config | {"model_type": "mamba"}))
    with pytest.raises(ForkLeftError, match="model_type 'mamba', which is none of the known student families"):
        load_student(tmp_path)
    with pytest.raises(ForkLeftError, match=r"model_type 'mamba' has no stock class; .* never runs a model's own code"):
        load_student(tmp_path, family="bd3lm")


def test_a_configuration_that_disagrees_with_the_tensors(tmp_path):
    written = write_checkpoint(tmp_path, "sdar")
    cases = [
        ({"hidden_size": 64}, r"has shape .*, but config.json makes it"),
        ({"vocab_size": 10**13}, r"has shape \(320, 32\), but config.json makes it \(10000000000000, 32\)"),
        ({"num_hidden_layers": 3}, r"missing: model.layers.2.input_layernorm.weight, .*v_proj.weight$"),
        ({"num_hidden_layers": 5}, r"missing: (model.layers[.\w]+(, )?){20} and 13 more"),
        ({"tie_word_embeddings": True}, "ties the output head to the embedding, but lm_head.weight differs"),
    ]
    for changes, message in cases:
        (tmp_path / "config.json").write_text(json.dumps(written.config | changes))
        with pytest.raises(ForkLeftError, match=message):
            load_student(tmp_path)


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("config.json", {"block_size": "4"}, "config.json has block_size = '4', expected a whole number"),
        ("config.json", {"block_size": 0}, "config.json has block_size = 0, expected a whole number above 0"),
        ("config.json", {"mask_token_id": "x"}, "the configuration's mask_token_id must be a token id, found 'x'"),
        ("config.json", {"mask_token_id": -1}, "the configuration's mask_token_id must be a token id, found -1"),
        ("config.json", {"hidden_size": "x"}, "config.json has hidden_size = 'x'"),
        ("config.json", {"num_hidden_layers": 10**9}, "num_hidden_layers = 1000000000, expected .* from 1 to 1000"),
        ("generation_config.json", {"eos_token_id": "x"}, "eos_token_id must be a token id or a list .* found 'x'"),
        (
            loading.SIDECAR,
            {"mask_id": "x"},
            r"forkleft_student.json is damaged \(mask_id must be a token id, found 'x'",
        ),
        (loading.SIDECAR, {"stop_ids": 258}, r"forkleft_student.json is damaged \(stop_ids must be a list"),
        (loading.SIDECAR, {"block_size": "4"}, r"forkleft_student.json is damaged \(block_size must be a whole number"),
        (loading.SIDECAR, {"sub_block": "x"}, r"forkleft_student.json is damaged \(sub_block must be a whole number"),
        (loading.SIDECAR, {"head": []}, r"forkleft_student.json is damaged \(head must be one of same, shifted"),
    ],
)
def test_senseless_values(tmp_path, file, changes, message):
    written = write_checkpoint(tmp_path, "sdar")
    path = written.folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"mask_token": None}))
    facts = {"attention": "block", "block_size": 4, "anchor": "absolute", "head": "same"}
    sidecar = {"family": "sdar", **facts, "mask_id": 282, "stop_ids": [258]}
    path = tmp_path / file
    fields = sidecar if file == loading.SIDECAR else json.loads(path.read_text())
    path.write_text(json.dumps(fields | changes))
    with pytest.raises(ForkLeftError, match=message):
        load_student(tmp_path)


@pytest.mark.parametrize("auto_map", [None, "x", [], {"AutoTokenizer": None}, {"AutoTokenizer": [None, None]}])
def test_a_tokenizer_without_data_and_without_code(tmp_path, auto_map):
    written = write_checkpoint(tmp_path, "sdar")
    (written.folder / "tokenizer.json").unlink()
    path = written.folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"auto_map": auto_map}))
    with pytest.raises(ForkLeftError, match=r"has no tokenizer: expected tokenizer.json"):
        load_student(tmp_path, trust_remote_code=True)


@pytest.mark.parametrize(
    ("mask_token", "message"),
    [
        ("A", r"'A' \(id 32\) cannot be the mask: it is an ordinary token; .* candidates: '<\|MASK\|>' \(282\), "),
        (32, r"'A' \(id 32\) cannot be the mask: it is an ordinary token"),
        ("<|im_start|>", r"'<\|im_start\|>' \(id 257\) cannot be the mask: it stands in the chat template"),
        (257, r"'<\|im_start\|>' \(id 257\) cannot be the mask: it stands in the chat template"),
        (400, "mask id 400 is outside the model's 320 embeddings"),
    ],
)
def test_a_token_that_cannot_be_the_mask(tmp_path, mask_token, message):
    write_checkpoint(tmp_path, "sdar")
    with pytest.raises(ForkLeftError, match=message):
        load_student(tmp_path, mask_token=mask_token)


def test_a_generation_config_that_names_no_end_does_not_hide_the_configurations(tmp_path):
    written = write_checkpoint(tmp_path, "efficient-dlm")
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.6}')
    (tmp_path / "config.json").write_text(json.dumps(written.config | {"eos_token_id": [TURN_END, END]}))
    assert load_student(tmp_path, **written.settings).vocabulary.stop_ids == (END, TURN_END)


@pytest.mark.parametrize("kind", ["efficient-dlm", "llada"])
def test_fields_that_nobody_reads_are_told(tmp_path, caplog, kind):
    written = write_checkpoint(tmp_path, kind)
    (tmp_path / "config.json").write_text(json.dumps(written.config | {"new_trick": 1}))
    caplog.set_level(logging.INFO, logger="forkleft")
    load_student(tmp_path, **written.settings)
    (message,) = caplog.messages
    assert message.startswith("fields of config.json that are not looked at: ") and "new_trick" in message


def test_a_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    written = write_checkpoint(tmp_path / "model", "sdar")
    assert same_parameters(load_student("~/model").model, written.stock)


def saved(folder):
    """A student as a training leaves it, with the state to resume from beside it."""
    written = write_checkpoint(folder.parent / "origin", "sdar")
    save_student(load_student(written.folder, **written.settings), folder)
    (folder / "optimizer.pt").write_bytes(b"moments")
    write_manifest(folder)
    return folder


def test_damaged_weights_are_not_loaded(tmp_path):
    folder = saved(tmp_path / "checkpoint-2")
    load_student(folder)
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    # A changed bit in the last tensor, which safetensors does not see.
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(ForkLeftError, match=r"is not as it was saved: model.safetensors is damaged; copy it again"):
        load_student(folder)
    # Prompts can be checked without weights, and without the time to read them.
    load_student(folder, weights=False)
    weights.write_bytes(content)
    # Who evaluates needs no state to resume from.
    (folder / "optimizer.pt").unlink()
    load_student(folder)


def test_a_manifest_of_another_tool_means_nothing(tmp_path):
    written = write_checkpoint(tmp_path / "origin", "sdar")
    (written.folder / MANIFEST).write_text('{"version": 2}')
    load_student(written.folder, **written.settings)
