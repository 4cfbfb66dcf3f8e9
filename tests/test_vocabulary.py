import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GenerationConfig, PretrainedConfig, PreTrainedTokenizerFast

from forkleft.errors import ForkLeftError
from forkleft.lab.tokenizer import build_tokenizer
from forkleft.vocabulary import Vocabulary, check_mask, common_vocabulary, resolve_mask_id, resolve_stop_ids

WORDS = ["the", "cat", "sat", "on", "mat", "<|unk|>"]


def word_tokenizer(words=WORDS, special=(), pre_tokenizer=None, **tokens) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<|unk|>"))
    backend.pre_tokenizer = pre_tokenizer or pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, unk_token="<|unk|>", additional_special_tokens=list(special), **tokens
    )


def common(student, teacher, **changes):
    settings = {"student_rows": 100, "teacher_rows": 100, "mask_id": 50, "stop_ids": [0]}
    return common_vocabulary(student, teacher, **settings | changes)


def test_valid_ids_are_shared_strings_without_mask_pad_and_padded_rows():
    student = word_tokenizer(special=["<eos>", "<mask>", "<think>"], pad_token="<pad>")
    teacher = word_tokenizer(special=["<eos>", "<other>"], pad_token="<pad>")
    ids = {name: student.convert_tokens_to_ids(name) for name in ("<eos>", "<mask>", "<think>", "<pad>")}
    found = common(student, teacher, mask_id=ids["<mask>"], stop_ids=[ids["<eos>"]])
    expected = set(range(6))
    for token, i in student.get_vocab().items():
        if teacher.get_vocab().get(token) == i and token not in ("<pad>", "<mask>"):
            expected.add(i)
    assert found.valid == expected
    assert ids["<eos>"] in found.valid
    assert not {ids["<mask>"], ids["<think>"], ids["<pad>"]} & found.valid
    # Fewer rows in one of the heads than tokens: the rest has no logit to compare.
    assert common(student, teacher, teacher_rows=4).valid == {0, 1, 2, 3}


def test_pad_is_valid_where_it_stops_a_response():
    tokenizer = word_tokenizer(pad_token="<pad>")
    pad = tokenizer.pad_token_id
    assert pad in common(tokenizer, tokenizer, stop_ids=[pad]).valid
    assert pad not in common(tokenizer, tokenizer).valid
    assert 3 in Vocabulary.of_ids(range(5), 4, [3], pad_id=3).valid
    assert 3 not in Vocabulary.of_ids(range(5), 4, [2], pad_id=3).valid


def test_ordinary_tokens_that_differ_are_named():
    other = word_tokenizer(["the", "dog", "sat", "by", "mat", "<|unk|>"])
    with pytest.raises(ForkLeftError, match=r"2 ordinary tokens differ .*: 1: 'cat' / 'dog', 3: 'on' / 'by'"):
        common(word_tokenizer(), other)


def test_a_longer_table_is_a_difference():
    with pytest.raises(ForkLeftError, match=r"1 ordinary tokens differ .*: 6: None / 'more'"):
        common(word_tokenizer(), word_tokenizer([*WORDS, "more"]))


def test_the_same_table_with_another_cut_is_an_error():
    cut = word_tokenizer(pre_tokenizer=pre_tokenizers.WhitespaceSplit())
    with pytest.raises(ForkLeftError, match="share token ids but cut text differently"):
        common(word_tokenizer(), cut)


def test_padded_rows_are_excluded():
    vocabulary = Vocabulary(frozenset({0, 2, 3}), mask_id=1, stop_ids=(3,))
    assert vocabulary.excluded(6).tolist() == [False, True, False, False, True, True]
    assert vocabulary.excluded(3).tolist() == [False, True, False]


def test_check_names_the_tokens():
    tokenizer = build_tokenizer()
    vocabulary = Vocabulary.of_ids(range(len(tokenizer)), tokenizer.mask_token_id, [tokenizer.eos_token_id])
    vocabulary.check([tokenizer.eos_token_id, 20], "question 7: the reference")
    with pytest.raises(ForkLeftError, match=r"question 7: the reference holds 2 id\(s\) .*: 1 \('<\|mask\|>'\), 999;"):
        vocabulary.check([20, 999, tokenizer.mask_token_id], "question 7: the reference", tokenizer)
    with pytest.raises(ForkLeftError, match=r"holds 1 id\(s\) .*: -1;"):
        vocabulary.check([-1], "question 7: the reference", tokenizer)


def test_mask_id_is_resolved_and_never_guessed():
    plain = word_tokenizer(special=["<|MASK|>"])
    named = word_tokenizer(mask_token="<m>")
    assert resolve_mask_id(named) == named.mask_token_id
    assert resolve_mask_id(plain, PretrainedConfig(mask_token_id=3)) == 3
    assert resolve_mask_id(plain, mask_token="<|MASK|>") == plain.convert_tokens_to_ids("<|MASK|>")
    assert resolve_mask_id(plain, mask_token=17) == 17
    with pytest.raises(ForkLeftError, match=r"neither .* names a mask token; .* candidates: '<\|MASK\|>' \(6\)"):
        resolve_mask_id(plain, PretrainedConfig())
    with pytest.raises(ForkLeftError, match="no token of it looks like one"):
        resolve_mask_id(word_tokenizer())
    with pytest.raises(ForkLeftError, match=r"the tokenizer has no token '<mask>'; .*'<\|MASK\|>'"):
        resolve_mask_id(plain, mask_token="<mask>")
    with pytest.raises(ForkLeftError, match=r"mask_token is 6 \('<m>'\) but the configuration's mask_token_id is 3"):
        resolve_mask_id(named, PretrainedConfig(mask_token_id=3))


def test_added_tokens_come_first_among_the_candidates():
    words = [*WORDS, "_mask", ".mask", "(mask", "[mask", "mask]", "-mask"]
    with pytest.raises(ForkLeftError, match=r"candidates: '<\|MASK\|>' \(12\), '_mask'"):
        resolve_mask_id(word_tokenizer(words, special=["<|MASK|>"]))


def test_stop_ids_come_from_both_places():
    tokenizer = word_tokenizer(eos_token="<eos>")
    eos = tokenizer.eos_token_id
    assert resolve_stop_ids(tokenizer) == (eos,)
    assert resolve_stop_ids(tokenizer, GenerationConfig(eos_token_id=[3, eos, 4])) == (eos, 3, 4)
    assert resolve_stop_ids(word_tokenizer(), GenerationConfig(eos_token_id=2)) == (2,)
    # The model's configuration is asked where the generation configuration says nothing, and only there.
    config = PretrainedConfig(eos_token_id=4)
    assert resolve_stop_ids(word_tokenizer(), GenerationConfig(), config) == (4,)
    assert resolve_stop_ids(word_tokenizer(), GenerationConfig(eos_token_id=2), config) == (2,)
    with pytest.raises(ForkLeftError, match="eos_token_id must be a token id or a list of them, found 'x'"):
        resolve_stop_ids(word_tokenizer(), GenerationConfig(eos_token_id=[1, "x"]))
    with pytest.raises(ForkLeftError, match="names an EOS token"):
        resolve_stop_ids(word_tokenizer(), GenerationConfig())


def test_the_end_of_a_turn_is_the_first_stop_id():
    tokenizer = word_tokenizer(special=["<|im_end|>"], eos_token="<eos>")
    end, eos = (tokenizer.convert_tokens_to_ids(token) for token in ("<|im_end|>", "<eos>"))
    assert resolve_stop_ids(tokenizer, GenerationConfig(eos_token_id=[3, end])) == (eos, 3, end)
    tokenizer.chat_template = "{{ messages[0].content }}<|im_end|>"
    assert resolve_stop_ids(tokenizer, GenerationConfig(eos_token_id=[3, end])) == (end, eos, 3)
    without = word_tokenizer(special=["<|im_end|>"])
    without.chat_template = tokenizer.chat_template
    assert resolve_stop_ids(without) == (without.convert_tokens_to_ids("<|im_end|>"),)


def test_what_can_be_a_mask():
    tokenizer = word_tokenizer(special=["<|im_start|>", "<|spare|>", "<|MASK|>"], bos_token="<bos>", eos_token="<eos>")
    tokenizer.chat_template = "<|im_start|>{{ messages[0].content }} <|new|>"
    ids = tokenizer.get_vocab()
    for token in ("<|spare|>", "<|MASK|>", "<|unused|>", ids["<|spare|>"], 50):
        check_mask(tokenizer, token)
    for token, reason in (
        ("cat", r"'cat' \(id 1\) cannot be the mask: it is an ordinary token"),
        ("<|im_start|>", "it stands in the chat template"),
        ("<|new|>", "'<|new|>' cannot be the mask: it stands in the chat template"),
        ("<bos>", "it begins texts"),
        ("<eos>", "it ends texts"),
    ):
        for form in (token, *([ids[token]] if token in ids else [])):
            with pytest.raises(ForkLeftError, match=reason.replace("|", r"\|")) as error:
                check_mask(tokenizer, form)
            # Those that look like one first, and none that could not be one.
            assert "candidates: '<|MASK|>'" in str(error.value) and "'<|spare|>'" in str(error.value)
            assert not any(
                f"{other!r} (" in str(error.value).split("candidates")[1] for other in ("<bos>", "<|im_start|>")
            )
