#!/usr/bin/env python3
"""Makes the small tokenizers of this folder and golden.json: what the libraries that define them make of a mixed text.

usage: make_tokenizers.py      (needs tokenizers and sentencepiece from PyPI, and bible-kjv from Debian)

Each tokenizer.json has the exact pre-tokenizer, normalizer, model settings and post-processor of a published model, with a
vocabulary of its own, trained here. The text of 2 MB is made of snippets.json by a generator that tokenizer_golden_test.cc
has too (mixed_text): golden.json holds the number of ids of each chunk and a digest of them, so that a difference is found
near its place.
"""
import io
import json
import os
import random
import subprocess
import unicodedata

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
CHUNK = 1 << 16
CHUNKS = 32
VOCAB = 1200

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
            r"\s*[\r\n]+|\s+(?!\S)|\s+")


def make_snippets():
    rng = random.Random(7)
    old = unicodedata.ucd_3_2_0  # what every version of Unicode in use agrees on
    assigned = [c for c in range(1, 0x2FA1E) if old.category(chr(c)) not in ("Cn", "Cs", "Co")]
    words = ("the of and to in a that is was he for it with as his on be at by I this had not are but from or have an they which "
             "one you were her all she there would their we him been has when who will more no if out so said what up its about "
             "into than them can only other new some could time these two may then do first any my now such like our over man me "
             "even most made after also did many before must through back years where much your way well down should because each "
             "just those people how too little state good very make world still own see men work long get here between both life "
             "being under never day same another know while last might us great old year off come since against go came right "
             "Tokenizers cut text into words; models count them.").split()
    out = [" " + w for w in words] * 3
    out += [" " + " ".join(rng.choice(words) for _ in range(12)) + ".\n" for _ in range(40)]
    out += [
        " ", "  ", "   ", "\t", "\t\t", "\n", "\n\n", "\r\n", " \n", "\n ", "\u00a0", "\u3000", "\u2003", "\u2028", "\u0085", "\u200b",
        "\ufeff", "\x0b", "\x0c", "\x00", "\x7f", "'s", "'S", "'ll", "'LL", "'re", "'d", "'\u017f", "'m ", "'", "\u2019s", "don't", "I'VE",
        "0", "1", "12", "123", "1234", "3.14159", "1,000,000", "\u00bd", "\u00b2", "\u0663\u0664", "\u216b", "\u4e09", "0x1F", "1e-9",
        "!", "!!", "...", "--", "->", "=>", "::", "{}", "[]", "()", "<|", "|>", "__init__", "#", "\"", "\\", "/", "//", "$x", "@me", "a_b",
        "caf\u00e9", "cafe\u0301", "\u00c5", "A\u030a", "\u212b", "\ufb01", "\u1e9b\u0323", "q\u0307\u0323", "\u0301", "stra\u00dfe",
        "STRASSE", "\u0130i", "\u01c6", "\u03a3\u03c3\u03c2", "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440", "\u4f60\u597d\u4e16\u754c", "\u6771\u4eac\u3067", "\u304b\u306a\u30ab\u30ca", "\u304c\u304b\u3099",
        "\ud55c\uad6d\uc5b4", "\u1112\u1161\u11ab", "\u0928\u092e\u0938\u094d\u0924\u0947", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35", "\u0627\u0644\u0639\u0631\u0628\u064a\u0629", "\u05e9\u05dc\u05d5\u05dd", "\u10e1\u10d0\u10e5", "\u0561\u0562", "\u1200\u1208", "\u13a0",
        "\U0001f600", "\U0001f44d\U0001f3fd", "\U0001f469\u200d\U0001f4bb", "\U0001f1e9\U0001f1ea", "\u2764\ufe0f", "\U00020000\U0002f800", "\U0001d538",
        "def f(x):\n    return x[1:] + 'a'\n", "for (int i = 0; i < n; i++) {\n\tsum += a[i];\n}\n", "SELECT * FROM t WHERE x='y';\n",
        "https://example.org/a?b=c&d=%20e", "<div class=\"x\">&amp;</div>\n", "{\"k\": [1, 2.5, null]}\n", "| a | b |\n|---|---|\n",
        "<|endoftext|>", " <|endoftext|> ", "<|im_start|>user\n", "<|im_end|>\n", "<|begin_of_text|>", "<strip>", "  <strip>\n\n ", "word",
        "<word>", "a<word>b", " <word> ", "x<word>", "<nfc\u00e9>", "<nfce\u0301>",
    ] * 4
    out += ["".join(chr(rng.choice(assigned)) for _ in range(24)) for _ in range(120)]
    out += ["".join(chr(c) for c in assigned[i::173]) for i in range(0, 173, 29)]
    # Ill-formed: a lone continuation, cut sequences, overlong forms, surrogates, beyond U+10FFFF.
    bad = ["80", "ff", "c3", "e2828c", "e282", "f09f98", "f0", "c0af", "e08080", "eda080", "edb0bdedb880", "f4908080", "f8888080", "fe", "41c3",
           "e2e282ac", "f09f20", "c3c3a9"]
    return out + [{"hex": h} for h in bad] * 2


def mixed_text(snippets):
    """The text, in chunks; the same arithmetic as in tokenizer_golden_test.cc."""
    raw = [bytes.fromhex(s["hex"]) if isinstance(s, dict) else s.encode() for s in snippets]
    state, chunks = 1, []
    for _ in range(CHUNKS):
        text = io.BytesIO()
        while text.tell() < CHUNK:
            state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
            text.write(raw[(state >> 33) % len(raw)])
        chunks.append(text.getvalue())
    return chunks


def digest(ids):
    h = 14695981039346656037
    for i in ids:
        h = ((h ^ i) * 1099511628211) % 2**64
    return "%016x" % h


def byte_level(**settings):
    return pre_tokenizers.ByteLevel(**{"add_prefix_space": False, "trim_offsets": True, "use_regex": True, **settings})


def split(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated", invert=False)


def special(*names):
    return [AddedToken(n, normalized=False, special=True) for n in names]


def layouts():
    bos = processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
                                        special_tokens=[("<|begin_of_text|>", VOCAB)])
    return {
        "gpt2": dict(pre=byte_level(), post=processors.ByteLevel(trim_offsets=False),
                     added=[AddedToken("<|endoftext|>", normalized=True, special=True)]),
        "llama3": dict(pre=pre_tokenizers.Sequence([split(LLAMA3), byte_level(use_regex=False)]),
                       post=processors.Sequence([processors.ByteLevel(trim_offsets=False), bos]), ignore_merges=True,
                       added=special("<|begin_of_text|>", "<|end_of_text|>")),
        "qwen2": dict(normalizer=normalizers.NFC(), pre=pre_tokenizers.Sequence([split(QWEN2), byte_level(use_regex=False)]),
                      post=processors.ByteLevel(trim_offsets=False),
                      added=special("<|endoftext|>", "<|im_start|>", "<|im_end|>")),
        "smollm2": dict(pre=pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level()]),
                        added=special("<|endoftext|>", "<|im_start|>", "<|im_end|>")),
        # Several cuts one after the other as in DeepSeek-V3, and every rule of added tokens.
        "rules": dict(normalizer=normalizers.Sequence([normalizers.NFC()]),
                      pre=pre_tokenizers.Sequence([split(r"\p{N}{1,3}"), split("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), split(DEEPSEEK),
                                                   byte_level(use_regex=False, add_prefix_space=True)]),
                      added=[AddedToken("<|endoftext|>", special=True, normalized=False),
                             AddedToken("<strip>", lstrip=True, rstrip=True, normalized=False),
                             AddedToken("word", single_word=True, normalized=False),
                             AddedToken("<word>", single_word=True, normalized=True),
                             AddedToken("<nfc\u00e9>", normalized=True), AddedToken("  ", normalized=False)]),
    }


def train(layout, corpus):
    tok = Tokenizer(models.BPE(ignore_merges=layout.get("ignore_merges", False)))
    if "normalizer" in layout:
        tok.normalizer = layout["normalizer"]
    tok.pre_tokenizer = layout["pre"]
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tok.train_from_iterator(corpus, trainer)
    assert tok.get_vocab_size() == VOCAB
    tok.add_tokens(layout["added"])
    if "post" in layout:
        tok.post_processor = layout["post"]
    return tok


def write_json(name, tok):
    spec = json.loads(tok.to_str())
    if name in ("gpt2", "qwen2"):  # as in the files that are published: merges as lines
        spec["model"]["merges"] = [" ".join(m) for m in spec["model"]["merges"]]
    with open(os.path.join(HERE, name + ".json"), "w", encoding="utf-8") as f:
        json.dump(spec, f, ensure_ascii=False, separators=(",", ":"))


def golden_of(encode, chunks):
    ids = [encode(c.decode("utf-8", "replace")) for c in chunks]
    return {"chunks": [[len(i), digest(i)] for i in ids], "sample": ids[0][:64]}


def main():
    snippets = make_snippets()
    with open(os.path.join(HERE, "snippets.json"), "w", encoding="utf-8") as f:
        json.dump(snippets, f, ensure_ascii=True, indent=0)
    chunks = mixed_text(snippets)
    bible = subprocess.run(["bible", "-f", "Gen1:1-Gen30:1"], check=True, capture_output=True, text=True).stdout
    corpus = [bible] + [c.decode("utf-8", "ignore") for c in chunks[:6]]
    golden = {}
    for name, layout in layouts().items():
        tok = train(layout, corpus)
        write_json(name, tok)
        again = Tokenizer.from_file(os.path.join(HERE, name + ".json"))
        golden[name] = golden_of(lambda t: again.encode(t, add_special_tokens=False).ids, chunks)
        golden[name]["special"] = again.encode("a b").ids
    for name, settings in {
            "sp_bpe": dict(model_type="bpe", byte_fallback=True, normalization_rule_name="identity", split_digits=True,
                           remove_extra_whitespaces=False, allow_whitespace_only_pieces=True),
            "sp_unigram": dict(model_type="unigram", byte_fallback=False, user_defined_symbols=["<|im_start|>"])}.items():
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(bible.split("\n")), model_writer=model, vocab_size=600,
                                                 minloglevel=2, num_threads=1, **settings)
        with open(os.path.join(HERE, name + ".model"), "wb") as f:
            f.write(model.getvalue())
        sp = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        golden[name] = golden_of(sp.encode, chunks)
    with open(os.path.join(HERE, "golden.json"), "w", encoding="utf-8") as f:
        json.dump(golden, f, indent=1)
        f.write("\n")


main()
