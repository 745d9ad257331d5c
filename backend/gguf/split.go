package gguf

import (
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// maxSplits bounds the parts of a model; the names have five digits.
const maxSplits = 99999

// SplitName tells whether path is named as a part of a split model is,
// NAME-00002-of-00005.gguf, and which one, from 1.
func SplitName(path string) (name string, part, parts int, ok bool) {
	const tail = len("-00001-of-00002.gguf")
	if len(path) <= tail {
		return "", 0, 0, false
	}
	name, end := path[:len(path)-tail], path[len(path)-tail:]
	if end[0] != '-' || end[6:10] != "-of-" || !strings.EqualFold(end[15:], ".gguf") {
		return "", 0, 0, false
	}
	part, err1 := strconv.Atoi(end[1:6])
	parts, err2 := strconv.Atoi(end[10:15])
	ok = err1 == nil && err2 == nil && 1 <= part && part <= parts
	return name, part, parts, ok
}

// openOthers opens the parts of a model whose first part is f, and takes their
// tensors over.
func (f *File) openOthers(path string) error {
	name, part, parts, ok := SplitName(path)
	switch {
	case !ok:
		return fmt.Errorf("gguf: %s: %w", path, unsupportedf("this is one of %d parts of a split model; they are found by names such as NAME-00001-of-%05d.gguf", f.splits, f.splits))
	case f.splits > maxSplits || parts != f.splits:
		return fmt.Errorf("gguf: %s: %w", path, corruptf(0, "the name says %d parts and the file %d", parts, f.splits))
	case part != 1:
		return fmt.Errorf("gguf: %s: %w", path, unsupportedf("this is part %d of a split model; open the first one, %s", part, filepath.Base(partName(name, 1, parts))))
	}
	if err := f.checkPart(path, 0); err != nil {
		return err
	}
	for i := 2; i <= parts; i++ {
		path := partName(name, i, parts)
		p, err := openPart(path)
		if err != nil {
			return fmt.Errorf("part %d of %d: %w", i, parts, err)
		}
		f.parts = append(f.parts, p)
		if err := p.checkPart(path, i-1); err != nil {
			return err
		}
		if p.splits != parts {
			return fmt.Errorf("gguf: %s: %w", path, corruptf(0, "it is one of %d parts, the first one of %d", p.splits, parts))
		}
		for _, t := range p.tensors {
			if _, twice := f.byName[t.Name]; twice {
				return fmt.Errorf("gguf: %s: %w", path, corruptf(0, "tensor %q is in an earlier part too", t.Name))
			}
			t.part = i - 1
			f.byName[t.Name] = len(f.tensors)
			f.tensors = append(f.tensors, t)
		}
	}
	if n, ok := f.Uint("split.tensors.count"); ok && n != uint64(len(f.tensors)) {
		return fmt.Errorf("gguf: %s: %w", path, corruptf(0, "the model has %d tensors, its %d parts hold %d: download them again", n, parts, len(f.tensors)))
	}
	return nil
}

// checkPart checks the number that a part gives itself, from 0.
func (f *File) checkPart(path string, want int) error {
	if n, ok := f.Uint("split.no"); ok && n != uint64(want) {
		return fmt.Errorf("gguf: %s: %w", path, corruptf(0, "it says that it is part %d, its name that it is part %d", n+1, want+1))
	}
	return nil
}

func partName(name string, part, parts int) string {
	return fmt.Sprintf("%s-%05d-of-%05d.gguf", name, part, parts)
}
