package jinja

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// method returns the method of v with the name as a function, nil if there is none.
func method(v Value, name string) Value {
	switch v := v.(type) {
	case Text:
		if f, ok := textMethods[name]; ok {
			return &Func{name, func(c *Call) (Value, error) {
				out, err := f(c, v)
				if t, ok := out.(Text); ok && err == nil {
					err = c.in.spend(len(t.S))
				}
				return out, err
			}}
		}
	case *Dict:
		if f, ok := dictMethods[name]; ok {
			return &Func{name, func(c *Call) (Value, error) { return f(c, v) }}
		}
	case *List:
		if f, ok := listMethods[name]; ok && !v.tuple {
			return &Func{name, func(c *Call) (Value, error) { return f(c, v) }}
		}
	}
	return nil
}

// textArg is the i-th argument as text; missing gives "".
func textArg(c *Call, i int, name string) (Text, error) {
	switch v := c.arg(i, name, nil).(type) {
	case nil:
		return Text{}, nil
	case Text:
		return v, nil
	default:
		return Text{}, fmt.Errorf("a string is needed, not %s", typeName(v))
	}
}

func intArg(c *Call, i int, name string, fallback int) (int, error) {
	v := c.arg(i, name, int64(fallback))
	n, ok := intOf(v)
	if !ok {
		return 0, fmt.Errorf("a whole number is needed, not %s", typeName(v))
	}
	return n, nil
}

func listOf(c *Call, ts []Text) (Value, error) {
	l := NewList()
	for _, t := range ts {
		l.Items = append(l.Items, t)
	}
	return l, c.in.spend(48 * len(ts))
}

type textMethod func(c *Call, t Text) (Value, error)

func strips(left, right bool) textMethod {
	return func(c *Call, t Text) (Value, error) {
		set, err := textArg(c, 0, "chars")
		return t.strip(set.S, left, right), err
	}
}

func splits(right bool) textMethod {
	return func(c *Call, t Text) (Value, error) {
		sep, err := textArg(c, 0, "sep")
		if err != nil {
			return nil, err
		}
		if c.arg(0, "sep", nil) != nil && sep.S == "" {
			return nil, fmt.Errorf("empty separator")
		}
		limit, err := intArg(c, 1, "maxsplit", -1)
		if err != nil {
			return nil, err
		}
		if err := c.in.spend(48 * (1 + strings.Count(t.S, sep.S))); err != nil {
			return nil, err
		}
		return listOf(c, t.split(sep.S, limit, right))
	}
}

// affix tells whether t starts or ends with the argument, or with one of a tuple.
func affix(has func(s, affix string) bool) textMethod {
	return func(c *Call, t Text) (Value, error) {
		v := c.arg(0, "", nil)
		if l, ok := v.(*List); ok {
			for _, x := range l.Items {
				if a, ok := x.(Text); ok && has(t.S, a.S) {
					return true, nil
				}
			}
			return false, nil
		}
		a, ok := v.(Text)
		if !ok {
			return nil, fmt.Errorf("a string is needed, not %s", typeName(v))
		}
		return has(t.S, a.S), nil
	}
}

// find returns where the argument is, in characters; without it -1, or an error.
func finds(index func(s, sub string) int, must bool) textMethod {
	return func(c *Call, t Text) (Value, error) {
		sub, err := textArg(c, 0, "sub")
		if err != nil {
			return nil, err
		}
		i := index(t.S, sub.S)
		if i < 0 {
			if must {
				return nil, fmt.Errorf("substring not found")
			}
			return int64(-1), nil
		}
		return int64(utf8.RuneCountInString(t.S[:i])), c.in.step(len(t.S) / 8)
	}
}

func all(in func(r rune) bool) textMethod {
	return func(c *Call, t Text) (Value, error) {
		return t.S != "" && strings.IndexFunc(t.S, func(r rune) bool { return !in(r) }) < 0, c.in.step(len(t.S) / 8)
	}
}

var textMethods map[string]textMethod

func init() {
	textMethods = map[string]textMethod{
		"strip": strips(true, true), "lstrip": strips(true, false), "rstrip": strips(false, true),
		"split": splits(false), "rsplit": splits(true),
		"startswith": affix(strings.HasPrefix), "endswith": affix(strings.HasSuffix),
		"find": finds(strings.Index, false), "rfind": finds(strings.LastIndex, false),
		"index": finds(strings.Index, true), "rindex": finds(strings.LastIndex, true),
		"isdigit": all(unicode.IsDigit), "isnumeric": all(unicode.IsNumber), "isalpha": all(unicode.IsLetter),
		"isalnum": all(func(r rune) bool { return unicode.IsLetter(r) || unicode.IsNumber(r) }),
		"isspace": all(unicode.IsSpace),
		"islower": func(c *Call, t Text) (Value, error) { return hasCase(t.S) && strings.ToLower(t.S) == t.S, nil },
		"isupper": func(c *Call, t Text) (Value, error) { return hasCase(t.S) && strings.ToUpper(t.S) == t.S, nil },
		"upper":   func(c *Call, t Text) (Value, error) { return t.each(strings.ToUpper), nil },
		"lower":   func(c *Call, t Text) (Value, error) { return t.each(strings.ToLower), nil },
		"title":   func(c *Call, t Text) (Value, error) { return title(t), nil },
		"capitalize": func(c *Call, t Text) (Value, error) {
			return capitalize(t), nil
		},
		"splitlines": func(c *Call, t Text) (Value, error) {
			return listOf(c, t.lines(truth(c.arg(0, "keepends", false))))
		},
		"replace": func(c *Call, t Text) (Value, error) {
			old, err := textArg(c, 0, "old")
			if err != nil {
				return nil, err
			}
			new, err := textArg(c, 1, "new")
			if err != nil {
				return nil, err
			}
			n, err := intArg(c, 2, "count", -1)
			if err != nil {
				return nil, err
			}
			return replaceText(c, t, old.S, new, n)
		},
		"count": func(c *Call, t Text) (Value, error) {
			sub, err := textArg(c, 0, "sub")
			return int64(strings.Count(t.S, sub.S)), err
		},
		"join": func(c *Call, t Text) (Value, error) {
			items, err := c.in.iterate(c.arg(0, "iterable", nil))
			if err != nil {
				return nil, err
			}
			return joinTexts(c, items, t, true)
		},
		"removeprefix": func(c *Call, t Text) (Value, error) {
			p, err := textArg(c, 0, "prefix")
			if strings.HasPrefix(t.S, p.S) {
				return t.slice(len(p.S), len(t.S)), err
			}
			return t, err
		},
		"removesuffix": func(c *Call, t Text) (Value, error) {
			p, err := textArg(c, 0, "suffix")
			if strings.HasSuffix(t.S, p.S) {
				return t.slice(0, len(t.S)-len(p.S)), err
			}
			return t, err
		},
		"format": func(c *Call, t Text) (Value, error) { return c.in.format(t, c) },
		"encode": func(c *Call, t Text) (Value, error) { return t, nil },
	}
}

// replaceText is Text.replace with its result counted before it is made.
func replaceText(c *Call, t Text, old string, new Text, n int) (Value, error) {
	times := strings.Count(t.S, old)
	if n >= 0 {
		times = min(times, n)
	}
	if len(new.S) > 0 && times > maxBytes/len(new.S) {
		return nil, limitf("more than %d MB of text", maxBytes>>20)
	}
	if err := c.in.spend(len(t.S) + times*(len(new.S)+32)); err != nil {
		return nil, err
	}
	return t.replace(old, new, n), nil
}

// joinTexts joins items with sep between; strict refuses what is not a string.
func joinTexts(c *Call, items []Value, sep Text, strict bool) (Value, error) {
	var b builder
	for i, x := range items {
		if i > 0 {
			b.add(sep)
		}
		if _, ok := x.(Text); !ok && strict {
			return nil, fmt.Errorf("item %d is a %s, not a string", i, typeName(x))
		}
		n := len(b.s)
		if err := c.in.str(&b, x); err != nil {
			return nil, err
		}
		if err := c.in.spend(len(b.s) - n + len(sep.S)); err != nil {
			return nil, err
		}
	}
	return b.text(), nil
}

func title(t Text) Text {
	start := true
	return t.each(func(s string) string {
		return strings.Map(func(r rune) rune {
			if !unicode.IsLetter(r) {
				start = true
				return r
			}
			if start {
				start = false
				return unicode.ToTitle(r)
			}
			return unicode.ToLower(r)
		}, s)
	})
}

func capitalize(t Text) Text {
	first := true
	return t.each(func(s string) string {
		return strings.Map(func(r rune) rune {
			if first {
				first = false
				return unicode.ToTitle(r)
			}
			return unicode.ToLower(r)
		}, s)
	})
}

var dictMethods map[string]func(c *Call, d *Dict) (Value, error)

func init() {
	dictMethods = map[string]func(c *Call, d *Dict) (Value, error){
		"items":  func(c *Call, d *Dict) (Value, error) { return pairs(c, d) },
		"keys":   func(c *Call, d *Dict) (Value, error) { return &List{Items: d.keys}, nil },
		"values": func(c *Call, d *Dict) (Value, error) { return &List{Items: d.vals}, nil },
		"get": func(c *Call, d *Dict) (Value, error) {
			if v, ok := d.find(c.arg(0, "key", nil)); ok {
				return v, nil
			}
			return c.arg(1, "default", nil), nil
		},
		"copy": func(c *Call, d *Dict) (Value, error) {
			return dictFunc(&Call{in: c.in, Args: []Value{d}})
		},
		"pop": func(c *Call, d *Dict) (Value, error) {
			k := c.arg(0, "key", nil)
			v, ok := d.find(k)
			if !ok {
				if len(c.Args) < 2 {
					return nil, fmt.Errorf("there is no such key")
				}
				return c.Args[1], nil
			}
			d.remove(k)
			return v, c.in.step(len(d.keys))
		},
		"update": func(c *Call, d *Dict) (Value, error) {
			src, err := dictFunc(c)
			if err != nil {
				return nil, err
			}
			for i, k := range src.(*Dict).keys {
				d.put(k, src.(*Dict).vals[i])
			}
			return nil, nil
		},
	}
}

// pairs lists keys and values as tuples.
func pairs(c *Call, d *Dict) (Value, error) {
	if err := c.in.spend(64 * len(d.keys)); err != nil {
		return nil, err
	}
	l := NewList()
	for i, k := range d.keys {
		l.Items = append(l.Items, &List{Items: []Value{k, d.vals[i]}, tuple: true})
	}
	return l, nil
}

var listMethods map[string]func(c *Call, l *List) (Value, error)

func init() {
	listMethods = map[string]func(c *Call, l *List) (Value, error){
		"append": func(c *Call, l *List) (Value, error) {
			// A new array each time it is full, so that a list being iterated or
			// sliced by others keeps its items.
			l.Items = append(l.Items[:len(l.Items):len(l.Items)], c.arg(0, "object", nil))
			return nil, c.in.spend(16 * len(l.Items))
		},
		"extend": func(c *Call, l *List) (Value, error) {
			items, err := c.in.iterate(c.arg(0, "iterable", nil))
			if err != nil {
				return nil, err
			}
			l.Items = append(l.Items[:len(l.Items):len(l.Items)], items...)
			return nil, c.in.spend(16 * len(l.Items))
		},
		"pop": func(c *Call, l *List) (Value, error) {
			i, err := intArg(c, 0, "index", -1)
			if err != nil {
				return nil, err
			}
			if i < 0 {
				i += len(l.Items)
			}
			if i < 0 || i >= len(l.Items) {
				return nil, fmt.Errorf("pop from index %d of %d items", i, len(l.Items))
			}
			v := l.Items[i]
			l.Items = append(append([]Value{}, l.Items[:i]...), l.Items[i+1:]...)
			return v, c.in.spend(16 * len(l.Items))
		},
		"index": func(c *Call, l *List) (Value, error) {
			for i, x := range l.Items {
				if c.in.equal(x, c.arg(0, "value", nil)) {
					return int64(i), c.in.step(i)
				}
			}
			return nil, fmt.Errorf("the value is not in the list")
		},
		"count": func(c *Call, l *List) (Value, error) {
			n := 0
			for _, x := range l.Items {
				if c.in.equal(x, c.arg(0, "value", nil)) {
					n++
				}
			}
			return int64(n), c.in.step(len(l.Items))
		},
	}
}
