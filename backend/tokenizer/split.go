package tokenizer

// splitter cuts text into the words that BPE works on, calling emit for each in
// order; the words joined are the text. The patterns are those that llama.cpp names
// by tokenizer.ggml.pre; each is a state machine here, one pass, no backtracking.
type splitter func(text string, emit func(word string))

// pre is a pre-tokenizer.
type pre struct {
	split        splitter
	ignoreMerges bool // a word that is in the vocabulary is its token, merges or not
	addBOS       bool // unless the file says otherwise
}

// pres are the known values of tokenizer.ggml.pre.
var pres = map[string]pre{}

func init() {
	for _, p := range []struct {
		pre   pre
		names []string
	}{
		{pre{split: splitGPT2}, []string{"gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling",
			"gigachat", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "a.x-4.0", "mellum", "modern-bert", "exaone4"}},
		{pre{split: splitDigitsGPT2}, []string{"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone",
			"minerva-7b", "mellum2"}},
		{pre{split: splitQwen2}, []string{"qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "stablelm2", "megrez",
			"hunyuan", "solar-open", "grok-2"}},
		{pre{split: splitQwen35}, []string{"qwen35"}},
		{pre{split: splitLlama3, ignoreMerges: true, addBOS: true}, []string{"llama-bpe", "llama3", "llama-v3",
			"falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"}},
		{pre{split: splitLlama3}, []string{"dbrx", "smaug-bpe", "chatglm-bpe"}},
		{pre{split: splitLlama3, ignoreMerges: true}, []string{"glm4", "glm5"}},
		{pre{split: splitDefault}, []string{"default", ""}},
		{pre{split: splitFalcon}, []string{"falcon"}},
	} {
		for _, name := range p.names {
			pres[name] = p.pre
		}
	}
}

// while returns the end of the run of characters of the given classes from s[i] on.
func while(s string, i int, c class) int {
	for {
		got, n := classAt(s, i)
		if got&c == 0 {
			return i
		}
		i += n
	}
}

// contraction returns the length of 's 't 're 've 'm 'll 'd at s[i], where s[i] is an
// apostrophe; 0 if there is none. With fold capitals count too.
func contraction(s string, i int, fold bool) int {
	at := func(j int) byte {
		if j >= len(s) {
			return 0
		}
		if c := s[j]; fold && c >= 'A' && c <= 'Z' {
			return c + 'a' - 'A'
		}
		return s[j]
	}
	switch a, b := at(i+1), at(i+2); {
	case a == 's' || a == 't' || a == 'm' || a == 'd':
		return 2
	case a == 'r' && b == 'e' || a == 'v' && b == 'e' || a == 'l' && b == 'l':
		return 3
	}
	return 0
}

// spaces returns the end of the word that white space at s[i] forms by itself:
// \s+(?!\S)|\s+, which leaves the last one to the word that follows, if there is one
// and it is not the only one.
func spaces(s string, i int) int {
	last, end := i, i
	for {
		c, n := classAt(s, end)
		if c&space == 0 {
			break
		}
		last, end = end, end+n
	}
	if end < len(s) && last > i {
		return last
	}
	return end
}

// splitGPT2 is 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
func splitGPT2(s string, emit func(string)) {
	for i := 0; i < len(s); {
		end := i
		if s[i] == '\'' {
			end += contraction(s, i, false)
		}
		if end == i {
			from := i
			if s[i] == ' ' {
				from++
			}
			c, _ := classAt(s, from)
			if c &= letter | number | other; c != 0 {
				end = while(s, from, c)
			} else {
				end = spaces(s, i)
			}
		}
		emit(s[i:end])
		i = end
	}
}

// splitDigitsGPT2 cuts out every \p{N} first and treats what lies between as GPT-2.
func splitDigitsGPT2(s string, emit func(string)) {
	start := 0
	for i := 0; i < len(s); {
		c, n := classAt(s, i)
		if c&number != 0 {
			splitGPT2(s[start:i], emit)
			emit(s[i : i+n])
			start = i + n
		}
		i += n
	}
	splitGPT2(s[start:], emit)
}

// splitLlama3 is (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|
// ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
func splitLlama3(s string, emit func(string)) { splitWide(s, emit, 3, letter) }

// splitQwen2 is the same with single digits.
func splitQwen2(s string, emit func(string)) { splitWide(s, emit, 1, letter) }

// splitQwen35 lets combining marks into words: [^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+ and
// ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*
func splitQwen35(s string, emit func(string)) { splitWide(s, emit, 1, letter|mark) }

// splitWide is the family of splitLlama3; digits is the most that stay together,
// word are the classes of the characters of a word.
func splitWide(s string, emit func(string), digits int, word class) {
	for i := 0; i < len(s); {
		end := wideWord(s, i, digits, word)
		emit(s[i:end])
		i = end
	}
}

func wideWord(s string, i, digits int, word class) int {
	if s[i] == '\'' {
		if n := contraction(s, i, true); n > 0 {
			return i + n
		}
	}
	c, n := classAt(s, i)
	if c&number != 0 {
		end := i
		for range digits {
			c, n := classAt(s, end)
			if c&number == 0 {
				break
			}
			end += n
		}
		return end
	}
	if s[i] != '\r' && s[i] != '\n' {
		next, _ := classAt(s, i+n)
		if c&word != 0 || next&word != 0 {
			return while(s, i+n, word)
		}
	}
	from := i
	if s[i] == ' ' {
		from++
	}
	if end := whileOther(s, from, word); end > from {
		for end < len(s) && (s[end] == '\r' || s[end] == '\n') {
			end++
		}
		return end
	}
	newline := i
	for j := i; j < len(s); {
		c, n := classAt(s, j)
		if c&space == 0 {
			break
		}
		if s[j] == '\r' || s[j] == '\n' {
			newline = j + 1
		}
		j += n
	}
	if newline > i {
		return newline
	}
	return spaces(s, i)
}

// whileOther returns the end of the run of characters that are neither white space,
// nor numbers, nor of the classes of a word.
func whileOther(s string, i int, word class) int {
	for {
		c, n := classAt(s, i)
		if c&other == 0 || c&word != 0 {
			return i
		}
		i += n
	}
}

// runs cuts s into the longest runs of characters for which in holds (kept whole) and
// what lies between (given to inner).
func runs(s string, in func(s string, i int) (bool, int), emit func(string), inner splitter) {
	start := 0
	for i := 0; i < len(s); {
		ok, n := in(s, i)
		if !ok {
			i += n
			continue
		}
		if start < i {
			inner(s[start:i], emit)
		}
		start = i
		for ok && i < len(s) {
			i += n
			if i < len(s) {
				ok, n = in(s, i)
			}
		}
		emit(s[start:i])
		start = i
	}
	if start < len(s) {
		inner(s[start:], emit)
	}
}

// symbolRun is a run of [\p{P}\$\+<=>\^~\|] and, with tick, of ` too.
func symbolRun(tick bool) func(s string, i int) (bool, int) {
	return func(s string, i int) (bool, int) {
		switch s[i] {
		case '$', '+', '<', '=', '>', '^', '~', '|':
			return true, 1
		case '`':
			return tick, 1
		}
		c, n := classAt(s, i)
		return c&punct != 0, n
	}
}

var (
	symbols     = symbolRun(false)
	symbolsTick = symbolRun(true)
)

// splitDefault is what llama.cpp does for files that name no pre-tokenizer: runs of
// symbols, then GPT-2, then runs of numbers, then digits by threes.
func splitDefault(s string, emit func(string)) {
	inNumbers := func(s string, i int) (bool, int) {
		c, n := classAt(s, i)
		return c&number != 0, n
	}
	threes := func(word string) { splitThrees(word, emit) }
	numbers := func(word string) {
		runs(word, inNumbers, threes, func(rest string, emit func(string)) { emit(rest) })
	}
	runs(s, symbols, numbers, splitGPT2)
}

// splitFalcon is splitDefault without the runs of numbers, which makes the digits by
// threes include a space before them, and with ` among the symbols.
func splitFalcon(s string, emit func(string)) {
	runs(s, symbolsTick, func(word string) { splitThrees(word, emit) }, splitGPT2)
}

// splitThrees cuts out every [0-9][0-9][0-9] from the left.
func splitThrees(s string, emit func(string)) {
	digit := func(i int) bool { return s[i] >= '0' && s[i] <= '9' }
	start := 0
	for i := 0; i+3 <= len(s); {
		if !digit(i) || !digit(i+1) || !digit(i+2) {
			i++
			continue
		}
		if start < i {
			emit(s[start:i])
		}
		emit(s[i : i+3])
		i += 3
		start = i
	}
	if start < len(s) {
		emit(s[start:])
	}
}
