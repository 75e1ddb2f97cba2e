#!/usr/bin/env python3
"""Makes vocab.json, merges.txt and golden.json beside this file with the PyPI package `tokenizers`
(0.23.3 made the committed ones): a small byte-level BPE trained on this repository's documentation and a
few lines of other languages, and what it makes of texts that are hard to cut into words.

    pip install tokenizers && tests/trainer/bpe/make_golden.py
"""
import json
import pathlib
import random

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]

OTHERS = [
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. " * 4,
    "Съешь же ещё этих мягких французских булок, да выпей чаю. " * 4,
    "いろはにほへと ちりぬるを わかよたれそ つねならむ。" * 4,
    "天地玄黃 宇宙洪荒 日月盈昃 辰宿列張。" * 4,
    "it's they're I've I'm we'll he'd don't IT'S isn't 'twas " * 4,
    "😀 😃 😄 👩‍👩‍👧‍👦 🇩🇪 🏳️‍🌈 " * 4,
]

TEXTS = [
    "", " ", "  ", "   ", "\n", "\n\n", " \n", "\n ", "\t\t", "a", " a", "  a", "   a   ", "a\n\nb",
    "Hello world", "Hello  world", "Hello   world\n", "   leading and trailing   ", "\n\n\n  x\n  y\n",
    "it's they're I've I'm we'll he'd don't can't", "IT'S THEY'RE 'S 'T 're 've 'm 'll 'd '", "''s'ss 's's",
    "don’t ‘quoted’ “text” – dash — dash…", "x=1;y=2.5e-10;z=0x1F", "1234567890 3.14159 1,000,000", "½ ²³ ٣٤٥ Ⅷ ①②",
    "snake_case camelCase kebab-case path/to/file.c:123", "a+b*c/(d-e)%f!=g&&h||!i", "#include <stdio.h>\nint main(void)\n{\n\treturn 0;\n}\n",
    "naïve café Ångström ﬁ ﬂ ß ẞ", "e\u0301 a\u0308 o\u0302", "Zwölf große Boxkämpfer", "Съешь же ещё этих булок",
    "שלום עולם", "مرحبا بالعالم", "हिन्दी नमस्ते", "ไทยภาษา", "한국어 텍스트", "日本語のテキスト。改行\nと、句読点！", "漢字かな交じり文",
    "😀😃😄", "👩‍👩‍👧‍👦 family", "🇩🇪🇫🇷 flags", "🏳️‍🌈", "text😀text 😀 text", "𝒜𝓃 𝔐𝔞𝔱𝔥", "\U0010ffff\U00020000",
    "nbsp\u00a0between\u00a0\u00a0words", "thin\u2009space\u2003em\u3000ideographic", "zero\u200bwidth\u200djoin\ufeffbom",
    "nel\u0085here line\u2028sep para\u2029sep", "mongolian\u180evowel", "unit\u001fsep file\u001csep bell\u0007", "nul\u0000inside",
    "vt\u000bff\u000ccr\r\nlf", " \u00a0 \u2003 mixed", "tab\there\t\tthere \t ", "trailing newline\n", "trailing spaces   ", "a  \n  b \n\n c",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "ththththththththththththe", "      eight", "----------",
    "=====", "holmes-train --data FILE --local 4", "The trainer's ranks", "\ufffd\ufffd", "\u00ad soft\u00adhyphen", "<|endoftext|>", "Ġ Ċ ĉ",
    "abc" * 300, "the " * 200, " " * 500 + "x", "é" * 200,
]


def main():
    files = sorted((ROOT / "docs").glob("*.md")) + [ROOT / "README.md"]
    corpus = [f.read_text(encoding="utf-8") for f in files] + OTHERS
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=256 + 400, min_frequency=2, show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))

    model = json.loads(tokenizer.to_str())["model"]
    vocab = dict(sorted(model["vocab"].items(), key=lambda kv: kv[1]))
    vocab["<|endoftext|>"] = len(vocab)
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    (HERE / "vocab.json").write_text(json.dumps(vocab, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    (HERE / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", encoding="utf-8")

    rng = random.Random(1)
    pieces = [c for t in TEXTS if len(t) < 100 for c in t] + ["the", " of", "'s", "  "]
    texts = TEXTS + ["".join(rng.choices(pieces, k=rng.randrange(1, 60))) for _ in range(200)]
    golden = [{"text": t, "ids": tokenizer.encode(t, add_special_tokens=False).ids} for t in texts]
    lines = ",\n".join(json.dumps(g, ensure_ascii=True, separators=(",", ":")) for g in golden)
    (HERE / "golden.json").write_text("[\n" + lines + "\n]\n", encoding="utf-8")


main()
