package jinja

import (
	"fmt"
	"strings"
	"time"
)

// globals are the functions that every template can call.
var globals map[string]Value

func init() { // not a literal: range and namespace refer to code that refers to globals
	globals = map[string]Value{
		"range":           &Func{"range", rangeFunc},
		"namespace":       &Func{"namespace", namespaceFunc},
		"dict":            &Func{"dict", dictFunc},
		"raise_exception": &Func{"raise_exception", raise},
		"strftime_now":    &Func{"strftime_now", strftimeNow},
	}
}

func rangeFunc(c *Call) (Value, error) {
	var n []int
	for _, a := range c.Args {
		i, ok := intOf(a)
		if !ok {
			return nil, fmt.Errorf("range needs whole numbers, not %s", typeName(a))
		}
		n = append(n, i)
	}
	from, to, step := 0, 0, 1
	switch len(n) {
	case 1:
		to = n[0]
	case 2:
		from, to = n[0], n[1]
	case 3:
		from, to, step = n[0], n[1], n[2]
	default:
		return nil, fmt.Errorf("range takes one to three numbers")
	}
	if step == 0 {
		return nil, fmt.Errorf("the step of range cannot be 0")
	}
	l := NewList()
	for i := from; step > 0 && i < to || step < 0 && i > to; {
		if err := c.in.spend(48); err != nil {
			return nil, err
		}
		l.Items = append(l.Items, int64(i))
		next := i + step
		if (next > i) != (step > 0) {
			break
		}
		i = next
	}
	return l, nil
}

func namespaceFunc(c *Call) (Value, error) {
	d, err := dictFunc(c)
	if err != nil {
		return nil, err
	}
	return &Namespace{d.(*Dict)}, nil
}

func dictFunc(c *Call) (Value, error) {
	d := NewDict()
	for _, a := range c.Args {
		src, ok := a.(*Dict)
		if !ok {
			return nil, fmt.Errorf("a mapping is needed, not %s", typeName(a))
		}
		for i, k := range src.keys {
			d.put(k, src.vals[i])
		}
	}
	for i, n := range c.Names {
		d.Set(n, c.Named[i])
	}
	return d, c.in.spend(64 * d.Len())
}

func raise(c *Call) (Value, error) {
	t, err := c.in.textOf(c.arg(0, "message", Text{S: "the template raised an error"}))
	if err != nil {
		return nil, err
	}
	return nil, &Raised{t.S}
}

func strftimeNow(c *Call) (Value, error) {
	f, ok := c.arg(0, "format", nil).(Text)
	if !ok {
		return nil, fmt.Errorf("strftime_now needs a format")
	}
	return Text{S: strftime(c.in.now(), f.S)}, nil
}

// strftime formats t as C does, in English.
func strftime(t time.Time, format string) string {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		pad := true
		if format[i] == '-' && i+1 < len(format) {
			pad = false
			i++
		}
		num := func(n, width int) {
			if !pad {
				width = 1
			}
			fmt.Fprintf(&b, "%0*d", width, n)
		}
		hour12 := (t.Hour()+11)%12 + 1
		switch format[i] {
		case 'Y':
			num(t.Year(), 4)
		case 'y':
			num(t.Year()%100, 2)
		case 'm':
			num(int(t.Month()), 2)
		case 'd':
			num(t.Day(), 2)
		case 'e':
			fmt.Fprintf(&b, "%2d", t.Day())
		case 'H':
			num(t.Hour(), 2)
		case 'I':
			num(hour12, 2)
		case 'M':
			num(t.Minute(), 2)
		case 'S':
			num(t.Second(), 2)
		case 'f':
			num(t.Nanosecond()/1000, 6)
		case 'j':
			num(t.YearDay(), 3)
		case 'B':
			b.WriteString(t.Month().String())
		case 'b', 'h':
			b.WriteString(t.Month().String()[:3])
		case 'A':
			b.WriteString(t.Weekday().String())
		case 'a':
			b.WriteString(t.Weekday().String()[:3])
		case 'w':
			num(int(t.Weekday()), 1)
		case 'u':
			num((int(t.Weekday())+6)%7+1, 1)
		case 'p':
			b.WriteString(t.Format("PM"))
		case 'Z':
			b.WriteString(t.Format("MST"))
		case 'z':
			b.WriteString(t.Format("-0700"))
		case 's':
			fmt.Fprint(&b, t.Unix())
		case 'F':
			b.WriteString(t.Format("2006-01-02"))
		case 'T':
			b.WriteString(t.Format("15:04:05"))
		case 'R':
			b.WriteString(t.Format("15:04"))
		case 'D', 'x':
			b.WriteString(t.Format("01/02/06"))
		case 'X':
			b.WriteString(t.Format("15:04:05"))
		case 'c':
			b.WriteString(t.Format("Mon Jan _2 15:04:05 2006"))
		case 'n':
			b.WriteByte('\n')
		case 't':
			b.WriteByte('\t')
		case '%':
			b.WriteByte('%')
		default:
			b.WriteByte('%')
			b.WriteByte(format[i])
		}
	}
	return b.String()
}

// loop is the variable of that name inside a for.
type loop struct {
	items []Value
	at    int
	last  []Value // arguments of the last loop.changed
}

func (l *loop) attr(name string) Value {
	n := len(l.items)
	switch name {
	case "index":
		return int64(l.at + 1)
	case "index0":
		return int64(l.at)
	case "revindex":
		return int64(n - l.at)
	case "revindex0":
		return int64(n - l.at - 1)
	case "first":
		return l.at == 0
	case "last":
		return l.at == n-1
	case "length":
		return int64(n)
	case "depth":
		return int64(1)
	case "depth0":
		return int64(0)
	case "previtem":
		if l.at > 0 {
			return l.items[l.at-1]
		}
	case "nextitem":
		if l.at+1 < n {
			return l.items[l.at+1]
		}
	case "cycle":
		return &Func{"cycle", func(c *Call) (Value, error) {
			if len(c.Args) == 0 {
				return nil, fmt.Errorf("cycle needs values")
			}
			return c.Args[l.at%len(c.Args)], nil
		}}
	case "changed":
		return &Func{"changed", func(c *Call) (Value, error) {
			same := len(l.last) == len(c.Args)
			for i := 0; same && i < len(c.Args); i++ {
				same = c.in.equal(l.last[i], c.Args[i])
			}
			l.last = append([]Value{}, c.Args...)
			return !same, nil
		}}
	}
	return Undefined{"loop." + name}
}

// iterate returns the items of v: characters of a text, keys of a dict.
func (in *interp) iterate(v Value) ([]Value, error) {
	switch v := v.(type) {
	case *List:
		return v.Items, in.step(len(v.Items))
	case *Dict:
		return v.keys, in.step(len(v.keys))
	case Text:
		if err := in.spend(16 * len(v.S)); err != nil {
			return nil, err
		}
		var out []Value
		for _, c := range v.chars() {
			out = append(out, c)
		}
		return out, nil
	case Undefined:
		return nil, nil
	}
	return nil, fmt.Errorf("a %s has no items", typeName(v))
}
