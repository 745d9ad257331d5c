"""The tokenizer: byte-level BPE, pre-tokenised as llama.cpp's "smollm" does.

Merges are learnt on words without the space before them. So no token joins a
space with a letter, and a name is the same tokens after a space, a quote or a
slash: copying is then token for token.

    python tok.py            learns tokenizer.json and checks round trips
"""

import json
import os
import random

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
PATH = os.path.join(HERE, "tokenizer.json")
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
EOT, START, END = 0, 1, 2
VOCAB = 1024

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
NO_SPACE = r"'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}+|[^\s\p{L}\p{N}]+|\s"


def serving():
    """Digits one by one, then the GPT-2 rule: what the runtime will do."""
    return pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.Split(Regex(GPT2), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def learn(texts):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.Split(Regex(NO_SPACE), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=SPECIAL, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), max_token_length=18))
    t.pre_tokenizer, t.decoder = serving(), decoders.ByteLevel()
    return t


class Tok:
    """ids of plain text and of turns. Specials are put in by id, never by text."""

    def __init__(self, path=PATH):
        self.t = Tokenizer.from_file(path)
        # Text that spells a special token stays plain text inside a turn.
        self.t.encode_special_tokens = True
        self.newline = self.text("\n")[0]
        self.cache = {}

    def text(self, s):
        return self.t.encode(s).ids

    def turn(self, role, content):
        """A whole turn: <|im_start|>role\\ncontent<|im_end|>\\n."""
        return [START] + self.text(role + "\n" + content) + [END, self.newline]

    def open(self, role="assistant"):
        """The start of a turn that the model is to fill."""
        if role not in self.cache:
            self.cache[role] = [START] + self.text(role + "\n")
        return self.cache[role]

    def decode(self, ids):
        return self.t.decode(list(ids), skip_special_tokens=False)


def corpus(n=6000):
    import data
    from alerts import alert
    from runbooks import action, filler, sections
    r = random.Random(7)
    for i in range(n):
        a = alert(r)
        yield "user\nAlert: " + a["alert"]
        for k, v in a["findings"].items():
            yield f"{k}: {v}"
        yield data.verdict(a, action(r))
        yield "user\nGive the verdict as JSON."
        yield filler(r)
        if i % 4 == 0:
            yield "system\n" + "\n\n".join(sections(r, others=2)[0])


if __name__ == "__main__":
    t = learn(corpus())
    t.save(PATH)
    tok = Tok()
    r = random.Random(1)
    for _ in range(2000):
        s = "".join(chr(r.choice((r.randrange(32, 127), 10, 32, r.randrange(160, 0x2fff)))) for _ in range(40))
        assert tok.decode(tok.text(s)) == s, s
    m = json.load(open(PATH))["model"]["merges"]
    assert not [x for x in m if "Ġ" in x[0] + x[1] and any(c.isalpha() and c != "Ġ" for c in x[0] + x[1])]
    for s in ('Pod payment-worker-7d9f8b-x2k9p is in CrashLoopBackOff with exit code 137 (OOMKilled)',
              '{"pod":"payment-worker-7d9f8b-x2k9p","reason":"OOMKilled","oom_killed":true,"recommended_action":"raise the limit"}',
              "low", "high", "critical", "Severity of NodeNotReady: critical.\n\nAction"):
        print(len(tok.text(s)), [tok.decode([i]) for i in tok.text(s)])
