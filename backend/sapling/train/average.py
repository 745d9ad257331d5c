"""python average.py OUT.pt CHECKPOINT[:WEIGHT] ...: the weighted mean of checkpoints.

Checkpoints of one run that lie some restarts of the learning rate apart differ in
what they get wrong; their mean is better than each (averaging of weights:
arXiv 1803.05407). Minutes and the optimiser's state are those of the first.
"""
import sys

import torch


def main():
    out, rest = sys.argv[1], [x.rpartition(":") if ":" in x else (x, "", "1") for x in sys.argv[2:]]
    total = sum(float(w) for _, _, w in rest)
    mean, first = {}, None
    for name, _, weight in rest:
        c = torch.load(name, map_location="cpu", weights_only=False)
        first = first or c
        for k, v in c["model"].items():
            mean[k] = mean.get(k, 0) + v.float() * (float(weight) / total)
    first["model"] = {k: v.to(first["model"][k].dtype) for k, v in mean.items()}
    torch.save(first, out)


if __name__ == "__main__":
    main()
