package lang

import (
	"strconv"
	"time"
)

// terms reads what a step says of how its task is carried out.
func (d *decoder) terms(f *fields) Terms {
	return Terms{
		Timeout:  f.duration("timeout"),
		Retry:    d.retry(f),
		Fallback: f.strs("fallback"),
		Priority: f.int("priority"),
		Salt:     Template(f.str("salt")),
	}
}

// callTerms is terms for a call, which asks no model.
func (d *decoder) callTerms(f *fields) Terms {
	return Terms{Timeout: f.duration("timeout"), Retry: d.retry(f)}
}

// retry reads a number of attempts, or a map with the waits too.
func (d *decoder) retry(f *fields) Retry {
	t := f.get("retry")
	if t == nil {
		return Retry{}
	}
	if t.kind != treeMap {
		n, err := strconv.Atoi(t.text)
		if t.kind != treeNumber || err != nil || n < 1 {
			d.errorf(t.line, "write the number of attempts, or {attempts: 4, wait: 1s, max_wait: 1m}", "%s: retry is %s", f.what, t.describe())
			return Retry{}
		}
		return Retry{Attempts: n}
	}
	rf := d.fields(t, f.what+": retry")
	r := Retry{Attempts: rf.int("attempts"), Wait: rf.duration("wait"), Max: rf.duration("max_wait")}
	rf.done()
	return r
}

func (f *fields) duration(key string) time.Duration {
	t := f.get(key)
	if t == nil {
		return 0
	}
	v, err := time.ParseDuration(t.text)
	if t.kind != treeString || err != nil || v <= 0 {
		f.d.errorf(t.line, "write a duration such as 30s, 500ms or 2m", "%s: %s is %s", f.what, key, t.describe())
		return 0
	}
	return v
}

// checks reads what a value must pass: conditions, {expr, say} or {func, say},
// one or a list.
func (d *decoder) checks(f *fields) []Validator {
	t := f.get("check")
	if t == nil {
		return nil
	}
	vals := []*tree{t}
	if t.kind == treeList {
		vals = t.vals
	}
	var out []Validator
	for _, v := range vals {
		if v.kind != treeMap {
			out = append(out, Validator{Expr: Expr(d.str(v, f.what+": check"))})
			continue
		}
		cf := d.fields(v, f.what+": check")
		out = append(out, Validator{Expr: Expr(cf.str("expr")), Func: cf.str("func"), Say: cf.str("say")})
		cf.done()
	}
	return out
}

// budget reads the bounds of a program's runs.
func (d *decoder) budget(f *fields) Budget {
	t := f.get("budget")
	if t == nil {
		return Budget{}
	}
	bf := d.fields(t, "budget")
	b := Budget{Tokens: bf.int("tokens"), Generated: bf.int("generated"), Cost: bf.float("cost"), Time: bf.duration("time")}
	bf.done()
	return b
}

func (e encoder) terms(m *tree, t *Terms) {
	e.duration(m, "timeout", t.Timeout)
	switch r := t.Retry; {
	case r == Retry{}:
	case r.Wait == 0 && r.Max == 0:
		m.put("retry", intTree(r.Attempts))
	default:
		rt := &tree{kind: treeMap, flow: true}
		e.int(rt, "attempts", r.Attempts)
		e.duration(rt, "wait", r.Wait)
		e.duration(rt, "max_wait", r.Max)
		m.put("retry", rt)
	}
	if len(t.Fallback) > 0 {
		m.put("fallback", strings2tree(t.Fallback))
	}
	e.int(m, "priority", t.Priority)
	e.str(m, "salt", string(t.Salt))
}

func (e encoder) duration(m *tree, key string, d time.Duration) {
	if d != 0 {
		m.put(key, strTree(d.String()))
	}
}

func (e encoder) checks(m *tree, checks []Validator, tries int) {
	if len(checks) > 0 {
		list := listTree()
		for _, c := range checks {
			if c.Func == "" && c.Say == "" {
				list.vals = append(list.vals, strTree(string(c.Expr)))
				continue
			}
			t := &tree{kind: treeMap}
			e.expr(t, "expr", c.Expr)
			e.str(t, "func", c.Func)
			e.str(t, "say", c.Say)
			list.vals = append(list.vals, t)
		}
		m.put("check", list)
	}
	e.int(m, "tries", tries)
}

func (e encoder) budget(m *tree, b Budget) {
	if b == (Budget{}) {
		return
	}
	t := &tree{kind: treeMap}
	e.int(t, "tokens", b.Tokens)
	e.int(t, "generated", b.Generated)
	e.float(t, "cost", b.Cost)
	e.duration(t, "time", b.Time)
	m.put("budget", t)
}
