import string

from transformers import AutoTokenizer

from forkleft.lab.questions import questions
from forkleft.lab.tokenizer import END_OF_TEXT, END_OF_TURN, build_tokenizer


def test_one_token_a_character_and_back():
    tokenizer = build_tokenizer()
    text = string.printable.replace("\t", "").replace("\r", "").replace("\x0b", "").replace("\x0c", "")
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) == len(text)
    assert tokenizer.unk_token_id not in ids
    assert tokenizer.decode(ids) == text
    assert tokenizer.encode("é", add_special_tokens=False) == [tokenizer.unk_token_id]


def test_special_tokens_are_one_token_each_and_distinct():
    tokenizer = build_tokenizer()
    special = [tokenizer.pad_token, tokenizer.mask_token, END_OF_TURN, END_OF_TEXT, "<|user|>", "<|assistant|>"]
    ids = [tokenizer.encode(token, add_special_tokens=False) for token in special]
    assert all(len(one) == 1 for one in ids)
    assert len({one[0] for one in ids}) == len(special)


def test_chat_template():
    tokenizer = build_tokenizer()
    item = questions(1, 3, split="train", seed=0)[0]
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": item.prompt}]
    prompt = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    assert prompt == f"<|system|>Be brief.<|user|>{item.question}<|assistant|>"
    turns.append({"role": "assistant", "content": item.solution})
    whole = tokenizer.apply_chat_template(turns, tokenize=False)
    assert whole == f"{prompt}{item.solution}{END_OF_TURN}"


def test_saved_and_loaded_it_is_the_same(tmp_path):
    tokenizer = build_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=False)
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert loaded.chat_template == tokenizer.chat_template
    names = ("mask_token", "pad_token", "eos_token", "unk_token", "padding_side", "model_max_length")
    assert [getattr(loaded, name) for name in names] == [getattr(tokenizer, name) for name in names]
