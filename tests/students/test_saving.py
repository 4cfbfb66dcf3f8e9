import json
from itertools import pairwise

import pytest
import safetensors.torch
import torch
from checkpoints_on_disk import KINDS, write_checkpoint
from exact import assert_exact
from peft import LoraConfig, get_peft_model
from safetensors import safe_open
from tiny import FAMILIES, MASK, STOP, family_name, tiny_model, tiny_student, tiny_tokenizer

from forkleft.errors import ForkLeftError
from forkleft.manifests import write_manifest
from forkleft.rollout import generate
from forkleft.students import Student, load_student, save_student
from forkleft.students.loading import SIDECAR

PROMPT = [5, 9, 40, 7]


def stored(folder):
    """All tensors of a folder by name."""
    found = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_a_student_is_saved_in_the_format_it_came_from(tmp_path, kind):
    written = write_checkpoint(tmp_path / "a", kind, shards=2)
    student = load_student(written.folder, **written.settings)
    save_student(student, tmp_path / "b")
    saved = stored(tmp_path / "b")
    assert saved.keys() == written.tensors.keys()
    assert all(torch.equal(saved[name], tensor) for name, tensor in written.tensors.items())
    assert json.loads((tmp_path / "b" / "config.json").read_text()) == written.config
    kept = {path.name for path in written.folder.iterdir() if not path.name.startswith("model.safe")}
    kept = {name for name in kept if not name.endswith(".safetensors")}
    assert {path.name for path in (tmp_path / "b").iterdir()} == kept | {"model.safetensors", SIDECAR}
    for name in kept - {"config.json"}:
        assert (tmp_path / "b" / name).read_bytes() == (written.folder / name).read_bytes()
    # Nothing has to be said again: the family, the mask and the ends are noted.
    again = load_student(tmp_path / "b")
    assert again.family == student.family and again.family.name == student.family.name
    assert again.vocabulary == student.vocabulary
    one, two = (generate(model, [PROMPT], max_new_tokens=6, passes=2)[0] for model in (student, again))
    assert one.tokens == two.tokens


@pytest.mark.parametrize("kind", ["sdar", "sdar-moe", "dream", "llada"])
def test_a_trained_student_is_saved_as_it_is_now(tmp_path, kind):
    student = load_student(write_checkpoint(tmp_path / "a", kind).folder)
    with torch.no_grad():
        for parameter in student.model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.01)
    save_student(student, tmp_path / "b", shard_bytes=20_000)
    again = load_student(tmp_path / "b")
    assert all(torch.equal(a, b) for a, b in zip(student.model.parameters(), again.model.parameters(), strict=True))
    # In files of at most the size asked for, or one tensor.
    shards = sorted((tmp_path / "b").glob("model-*.safetensors"))
    assert len(shards) > 3 and shards[0].name == f"model-00001-of-{len(shards):05d}.safetensors"
    for path in shards:
        with safe_open(path, framework="pt") as file:
            sizes = [file.get_tensor(name).nbytes for name in file.keys()]  # noqa: SIM118
        assert sum(sizes) <= 20_000 or len(sizes) == 1
    index = json.loads((tmp_path / "b" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(x.nbytes for x in stored(tmp_path / "b").values())


@pytest.mark.parametrize("kind", ["efficient-dlm", "sdar", "dream"])
def test_a_chat_template_that_was_given_is_saved(tmp_path, kind):
    """Also where the origin has another; all its other files stay as they were."""
    written = write_checkpoint(tmp_path / "a", kind)
    given = "{{ messages[0].content }}<|im_end|>\n"
    student = load_student(written.folder, **written.settings, chat_template=given)
    save_student(student, tmp_path / "b")
    again = load_student(tmp_path / "b")
    assert again.tokenizer.chat_template == given and again.vocabulary == student.vocabulary
    # Whoever reads only one of the two files finds no other template.
    assert not json.loads((tmp_path / "b" / "tokenizer_config.json").read_text()).get("chat_template")
    assert again.tokenizer.get_vocab() == student.tokenizer.get_vocab()
    save_student(again, tmp_path / "c")
    assert (tmp_path / "c" / "chat_template.jinja").read_text() == given


def test_a_student_with_an_origin_but_no_tokenizer_is_saved(tmp_path):
    student = load_student(write_checkpoint(tmp_path / "a", "sdar").folder)
    student.tokenizer = None
    save_student(student, tmp_path / "b")
    assert load_student(tmp_path / "b").text_tokenizer.get_vocab()


def test_saving_again_leaves_no_old_weights(tmp_path):
    student = load_student(write_checkpoint(tmp_path / "a", "sdar").folder)
    save_student(student, tmp_path / "b", shard_bytes=20_000)
    save_student(student, tmp_path / "b")
    assert [path.name for path in (tmp_path / "b").glob("model*.safetensors*")] == ["model.safetensors"]


@pytest.mark.parametrize(("kind", "field"), [("sdar", "torch_dtype"), ("bd3lm", "dtype")])
def test_the_dtype_is_noted_where_the_configuration_has_it(tmp_path, kind, field):
    written = write_checkpoint(tmp_path / "a", kind)
    student = load_student(written.folder, **written.settings)
    save_student(student, tmp_path / "b", dtype=torch.bfloat16)
    assert json.loads((tmp_path / "b" / "config.json").read_text()) == written.config | {field: "bfloat16"}
    assert {tensor.dtype for tensor in stored(tmp_path / "b").values()} == {torch.bfloat16}
    assert student.model.dtype is torch.float32
    save_student(load_student(tmp_path / "b", dtype=torch.bfloat16), tmp_path / "c")
    assert all(torch.equal(a, b) for a, b in zip(*(stored(tmp_path / x).values() for x in "bc"), strict=True))


@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3", "qwen3_moe"])
def test_a_student_made_in_memory_becomes_a_stock_folder(tmp_path, architecture):
    family = FAMILIES[1]
    student = tiny_student(family, architecture, tokenizer=tiny_tokenizer(), norm_topk_prob=True, dtype=torch.float64)
    save_student(student, tmp_path / "saved")
    again = load_student(tmp_path / "saved", dtype=torch.float64)
    assert again.family == family and again.vocabulary == student.vocabulary
    assert type(again.model) is type(student.model)
    one, two = (generate(model, [[1, 2, 3]], max_new_tokens=6, passes=2)[0] for model in (student, again))
    assert one.tokens == two.tokens
    # And Transformers loads it, too.
    stock = type(student.model).from_pretrained(tmp_path / "saved", dtype=torch.float64)
    ids = torch.tensor([[1, 2, 3, 30]])
    assert_exact(stock(ids).logits, student.model(ids).logits)


@pytest.mark.parametrize("family", FAMILIES, ids=family_name)
def test_every_fact_survives(tmp_path, family):
    save_student(tiny_student(family, tokenizer=tiny_tokenizer()), tmp_path)
    assert load_student(tmp_path).family == family


@pytest.mark.parametrize("kind", ["dream", "llada", "sdar-moe"])
def test_lora_is_merged_on_request(tmp_path, kind):
    written = write_checkpoint(tmp_path / "a", kind)
    student = load_student(written.folder, dtype=torch.float64)
    targets = ["q_proj", "o_proj"] if kind == "sdar-moe" else ["q_proj", "v_proj", "down_proj"]
    get_peft_model(student.model, LoraConfig(r=2, target_modules=targets, lora_alpha=8))
    with torch.no_grad():
        for name, parameter in student.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.3)
    before = {name: parameter.clone() for name, parameter in student.model.named_parameters()}
    with pytest.raises(ForkLeftError, match=r"adapters in \d+ of its modules; say merge_adapters=True"):
        save_student(student, tmp_path / "b")
    assert not (tmp_path / "b").exists()
    save_student(student, tmp_path / "b", merge_adapters=True)
    # The model in memory is what it was, and what was written computes what it does.
    assert all(torch.equal(before[name], parameter) for name, parameter in student.model.named_parameters())
    assert stored(tmp_path / "b").keys() == written.tensors.keys()
    ids = torch.tensor([PROMPT])
    with torch.no_grad():
        again = load_student(tmp_path / "b", dtype=torch.float64).model
        adapted, merged, plain = (model(ids).logits for model in (student.model, again, written.stock.double()))
    assert_exact(merged, adapted)
    assert (adapted - plain).abs().max() > 1e-4


def test_adapters_are_merged_a_file_at_a_time(tmp_path, monkeypatch):
    """Otherwise a second whole model would be held."""
    student = load_student(write_checkpoint(tmp_path / "a", "sdar").folder)
    get_peft_model(student.model, LoraConfig(r=2, target_modules=["down_proj", "o_proj"]))
    done = []

    def save_file(tensors, path, metadata):
        done.append("write")
        safetensors.torch.save_file(tensors, path, metadata)

    for module in student.model.modules():
        if hasattr(module, "lora_A"):
            delta = module.get_delta_weight
            monkeypatch.setattr(
                module, "get_delta_weight", lambda layer, delta=delta: (done.append("merge"), delta(layer))[1]
            )
    monkeypatch.setattr("forkleft.students.shards.save_file", save_file)
    save_student(student, tmp_path / "b", merge_adapters=True, shard_bytes=10_000)
    merges = [k for k, what in enumerate(done) if what == "merge"]
    assert len(merges) == 4 and done.count("write") > 4
    assert all("write" in done[a:b] for a, b in pairwise(merges))


@pytest.mark.parametrize("kind", ["sdar", "llada", "dream"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("rows", [352, 300])
def test_a_resized_student_loads_again(tmp_path, kind, tied, rows):
    written = write_checkpoint(tmp_path / "a", kind, tied=tied)
    student = load_student(written.folder, **written.settings)
    student.model.resize_token_embeddings(rows, mean_resizing=False)
    save_student(student, tmp_path / "b")
    again = load_student(tmp_path / "b")
    assert again.model.get_input_embeddings().num_embeddings == rows
    assert all(torch.equal(a, b) for a, b in zip(student.model.parameters(), again.model.parameters(), strict=True))
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    changed = {name for name in config if config[name] != written.config[name]}
    assert changed <= {"vocab_size", "embedding_size"} and changed


def test_what_could_not_be_loaded_is_not_written(tmp_path):
    def student():
        return load_student(write_checkpoint(tmp_path / "a", "sdar").folder)

    small = student()
    small.model.resize_token_embeddings(282)
    with pytest.raises(ForkLeftError, match="the mask id 282 has no row left in the 282 of the embedding"):
        save_student(small, tmp_path / "b")
    odd = student()
    odd.model.model.norm.weight = torch.nn.Parameter(torch.ones(5))
    with pytest.raises(ForkLeftError, match=r"as described\): model.norm.weight \(5,\) / \(32,\); only the size of"):
        save_student(odd, tmp_path / "b")
    short = student()
    del short.model.model.layers[1]
    short.model.config.num_hidden_layers = 1
    message = r"model.layers.1.input_layernorm.weight missing / \(32,\), "
    with pytest.raises(ForkLeftError, match=message):
        save_student(short, tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_a_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    save_student(load_student(write_checkpoint(tmp_path / "a", "sdar").folder), "~/b")
    assert (tmp_path / "b" / "model.safetensors").is_file()


def test_adapters_that_cannot_be_merged(tmp_path):
    for settings, message in (
        ({"target_modules": ["embed_tokens"]}, "model.embed_tokens has adapters other than plain LoRA"),
        ({"target_modules": ["q_proj"], "use_dora": True}, "q_proj has adapters other than plain LoRA"),
        ({"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, "lm_head.modules_to_save.default.weight"),
    ):
        student = Student.from_model(tiny_model(), FAMILIES[0], MASK, [STOP])
        get_peft_model(student.model, LoraConfig(r=2, **settings))
        with pytest.raises(ForkLeftError, match=message):
            save_student(student, tmp_path, merge_adapters=True)
    student = Student.from_model(tiny_model(tie_word_embeddings=True), FAMILIES[0], MASK, [STOP])
    get_peft_model(student.model, LoraConfig(r=2, target_modules=["lm_head"]))
    with pytest.raises(ForkLeftError, match="lm_head has an adapter, but its weight is the embedding's too"):
        save_student(student, tmp_path, merge_adapters=True)


def test_the_origin_is_neither_overwritten_nor_needed_whole(tmp_path):
    folder = write_checkpoint(tmp_path / "a", "sdar").folder
    student = load_student(folder)
    with pytest.raises(ForkLeftError, match="is where the student was loaded from; save it to another folder"):
        save_student(student, tmp_path / "b" / ".." / "a")
    (folder / "model.safetensors").unlink()
    save_student(student, tmp_path / "b")
    folder.rename(tmp_path / "moved")
    with pytest.raises(ForkLeftError, match=r"was loaded from .* which is gone"):
        save_student(student, tmp_path / "c")


def test_a_folder_among_the_licences_is_not_copied_and_no_error(tmp_path):
    folder = write_checkpoint(tmp_path / "a", "sdar").folder
    (folder / "LICENSES").mkdir()
    (folder / "LICENSES" / "MIT.txt").touch()
    (folder / "LICENSE.txt").write_text("MIT")
    save_student(load_student(folder), tmp_path / "b")
    assert [path.name for path in (tmp_path / "b").glob("LICENSE*")] == ["LICENSE.txt"]


def test_a_link_that_leads_out_of_the_checkpoint_is_not_copied(tmp_path, caplog):
    (tmp_path / "token").write_text("hf_secret")
    folder = write_checkpoint(tmp_path / "a", "sdar").folder
    (folder / "LICENSE").symlink_to(tmp_path / "token")
    (folder / "NOTICE.txt").write_text("mine")
    (folder / "NOTICE").symlink_to("NOTICE.txt")
    save_student(load_student(folder), tmp_path / "b")
    assert sorted(path.name for path in (tmp_path / "b").glob("[LN]*")) == ["NOTICE", "NOTICE.txt"]
    assert f"{folder / 'LICENSE'} is not copied: it is a link to a file elsewhere" in caplog.text


def test_a_checkpoint_of_links_is_saved_with_its_tokenizer(tmp_path):
    written = write_checkpoint(tmp_path / "a", "sdar").folder
    (tmp_path / "links").mkdir()
    for path in written.iterdir():
        (tmp_path / "links" / path.name).symlink_to(path)
    save_student(load_student(tmp_path / "links"), tmp_path / "b")
    ours, theirs = load_student(tmp_path / "b"), load_student(written)
    assert ours.tokenizer.get_vocab() == theirs.tokenizer.get_vocab()
    assert ours.tokenizer.chat_template == theirs.tokenizer.chat_template
    assert ours.vocabulary == theirs.vocabulary


def test_the_manifest_of_the_model_before_is_removed(tmp_path):
    student = load_student(write_checkpoint(tmp_path / "a", "sdar").folder)
    save_student(student, tmp_path / "b")
    write_manifest(tmp_path / "b")
    with torch.no_grad():
        student.model.get_input_embeddings().weight.mul_(2)
    save_student(student, tmp_path / "b")
    assert load_student(tmp_path / "b").tokenizer is not None


def test_links_of_the_hub_s_cache_are_copied(tmp_path):
    written = write_checkpoint(tmp_path / "a", "sdar").folder
    blobs, snapshot = tmp_path / "models--o--n" / "blobs", tmp_path / "models--o--n" / "snapshots" / "1"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for path in written.iterdir():
        path.rename(blobs / path.name)
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    save_student(load_student(snapshot), tmp_path / "b")
    assert load_student(tmp_path / "b").tokenizer is not None
