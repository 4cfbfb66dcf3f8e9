import pytest
import torch
from exact import assert_exact
from tiny import MASK, PAD, STOP, VOCABULARY, tiny_model, tiny_student
from transformers import BloomConfig, BloomForCausalLM

from forkleft.errors import ForkLeftError
from forkleft.lab.tokenizer import build_tokenizer
from forkleft.objective.readouts import prefix_hidden
from forkleft.prompts import Reading
from forkleft.rollout import generate
from forkleft.students import Family, Student

BLOCK = Family("block", 4)


def test_from_model_refuses_a_missing_or_outside_mask():
    with pytest.raises(ForkLeftError, match="mask id is missing"):
        Student.from_model(tiny_model(), BLOCK, None, [STOP])
    for mask_id in (-1, VOCABULARY):
        with pytest.raises(ForkLeftError, match=f"mask id {mask_id} is outside the model's 40 embeddings"):
            Student.from_model(tiny_model(), BLOCK, mask_id, [STOP])


def test_from_model_refuses_bad_stop_ids():
    for stop_ids in ([], [-1], [10**6]):
        with pytest.raises(ForkLeftError, match="expected a stop id within the vocabulary, found"):
            Student.from_model(tiny_model(), BLOCK, MASK, stop_ids)
    assert PAD in Student.from_model(tiny_model(), BLOCK, MASK, [PAD]).vocabulary.valid
    with pytest.raises(ForkLeftError, match="the mask id 39 cannot also end a response"):
        Student.from_model(tiny_model(), BLOCK, MASK, [MASK])


def test_text_needs_a_tokenizer():
    with pytest.raises(ForkLeftError, match="the student has no tokenizer, which turns text into tokens and back"):
        _ = tiny_student(BLOCK).text_tokenizer
    tokenizer = build_tokenizer()
    assert Student.from_model(tiny_model(), BLOCK, MASK, [STOP], tokenizer=tokenizer).text_tokenizer is tokenizer


def test_attention_that_would_misread_a_mask_is_refused():
    """Sliding windows see less than the mask; other classes may ignore it or add something of their own."""
    sliding = tiny_model("qwen2", use_sliding_window=True, sliding_window=4, max_window_layers=0)
    with pytest.raises(ForkLeftError, match="Qwen2ForCausalLM has layers with sliding_attention"):
        Student.from_model(sliding, BLOCK, MASK, [STOP])
    foreign = BloomForCausalLM(BloomConfig(vocab_size=40, hidden_size=16, n_layer=1, n_head=2))
    with pytest.raises(ForkLeftError, match="BloomForCausalLM is not among the classes whose"):
        Student.from_model(foreign, BLOCK, MASK, [STOP])


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_attention_changed_behind_our_back_is_refused(implementation):
    """`eager` with a boolean mask would be silently wrong."""
    student = tiny_student(BLOCK)
    student.model.set_attn_implementation(implementation)
    for use in (
        lambda: generate(student, [[1]], max_new_tokens=4),
        lambda: prefix_hidden(student, [Reading("x", [1], [2], [0])], budget=4),
    ):
        with pytest.raises(ForkLeftError, match=f"attention was changed to '{implementation}'"):
            use()


def test_a_model_loaded_with_eager_attention_is_read_rightly():
    """Whatever it was loaded with, a student attends through our function."""
    model = tiny_model(dtype=torch.float64)
    model.set_attn_implementation("eager")
    reading = Reading("x", [5, 9, 2], [7, 3, 1, 30, 12], [0, 4])
    eager = prefix_hidden(Student.from_model(model, BLOCK, MASK, [STOP]), [reading], budget=8)
    assert_exact(eager, prefix_hidden(tiny_student(BLOCK, dtype=torch.float64), [reading], budget=8))


def test_logits_are_float32_and_excluded_ids_at_minus_infinity():
    student = tiny_student(BLOCK, dtype=torch.bfloat16)
    logits = student.logits(torch.randn(3, 32, dtype=torch.bfloat16))
    assert logits.dtype is torch.float32
    assert logits.isinf().any(0).nonzero().flatten().tolist() == [38, 39]


def test_few_rows_at_a_large_head_are_its_plain_product(monkeypatch):
    """Up to eight rows the factors are exchanged: the same numbers and gradients, laid out in the same way."""
    monkeypatch.setattr("forkleft.students.student._LARGE_HEAD", 40 * 32)
    forward, asked = torch.nn.Linear.forward, []
    monkeypatch.setattr(torch.nn.Linear, "forward", lambda self, rows: asked.append(len(rows)) or forward(self, rows))
    student = tiny_student(BLOCK, dtype=torch.float64)
    head = student.head_weight
    for rows in (1, 3, 8, 9):
        hidden_SD = torch.randn(rows, 32, dtype=torch.float64, requires_grad=True)
        logits_SV = student.logits(hidden_SD)
        weights_SV = torch.randn(rows, 38, dtype=torch.float64)
        found = torch.autograd.grad((logits_SV[:, :38] * weights_SV).sum(), (hidden_SD, head))
        assert logits_SV.is_contiguous()
        assert_exact(logits_SV[:, :38], torch.einsum("sd,vd->sv", hidden_SD, head)[:, :38])
        assert_exact(found[0], weights_SV @ head[:38])
        assert_exact(found[1][:38], weights_SV.T @ hidden_SD)
    assert asked == [9]


def test_padded_rows_of_the_head_never_enter_a_distribution():
    """A head of 128 rows over a tokenizer of 104 tokens; whatever stands in the rest, even NaN, changes nothing."""
    tokenizer = build_tokenizer()
    model = tiny_model(vocab_size=128, pad_token_id=0)
    student = Student.from_model(model, BLOCK, tokenizer.mask_token_id, [tokenizer.eos_token_id], tokenizer=tokenizer)
    prompt = tokenizer.encode("a=7;b=a+5;b?", add_special_tokens=False)
    before = generate(student, [prompt], max_new_tokens=12)[0]
    assert max(before.tokens) < len(tokenizer)
    with torch.no_grad():
        model.get_output_embeddings().weight[len(tokenizer) :] = float("nan")
        model.get_output_embeddings().weight[tokenizer.pad_token_id] = 3e38
    assert generate(student, [prompt], max_new_tokens=12)[0] == before
    assert before.text == tokenizer.decode(before.tokens, skip_special_tokens=True)


def test_a_tokenizer_with_gaps_keeps_its_stop_id():
    class Gaps:
        pad_token_id = None

        def get_vocab(self):
            return {"a": 0, "b": 1, "<eos>": 35, "<mask>": 39}

    student = Student.from_model(tiny_model(), BLOCK, MASK, [35], tokenizer=Gaps())
    assert student.vocabulary.valid == {0, 1, 35}


def test_head_weight_is_that_of_a_plain_head():
    student = Student.from_model(tiny_model(), BLOCK, MASK, [STOP])
    assert student.head_weight is student.model.lm_head.weight
    assert student.excluded_V.nonzero().flatten().tolist() == []
    assert len(student.excluded_V) == STOP + 1
    for head in (torch.nn.Linear(32, VOCABULARY, bias=True), torch.nn.Bilinear(32, 1, VOCABULARY, bias=False)):
        student.model.lm_head = head
        with pytest.raises(ForkLeftError, match=f"a plain linear layer without bias, .* found {type(head).__name__}"):
            _ = student.head_weight
