package lang

// stepKinds are the keys that a step can have.
var stepKinds = []string{"system", "user", "assistant", "tool", "text", "image", "role", "gen", "select", "json", "fork", "when", "repeat", "foreach", "call", "run", "sleep", "wait", "let", "return"}

func (d *decoder) steps(t *tree) []*Node {
	switch t.kind {
	case treeList:
	case treeNull:
		return nil
	default:
		d.errorf(t.line, "begin each step with -", "steps are %s, not a list", t.kind)
		d.partial = true
		return nil
	}
	var out []*Node
	for _, s := range t.vals {
		if n := d.step(s); n != nil {
			out = append(out, n)
		} else {
			d.partial = true
		}
	}
	return out
}

// step reads one step: a map of its kind to what it says.
func (d *decoder) step(t *tree) *Node {
	if t.kind != treeMap {
		d.errorf(t.line, "write - user: text, - gen: {name: x} and so on", "a step is %s, not a map", t.kind)
		return nil
	}
	kind := ""
	for i, k := range t.keys {
		if k == "at" {
			continue
		}
		if !contains(stepKinds, k) {
			d.errorf(t.at[i], didYouMean(k, stepKinds), "no step %q", clip(k, 40))
			return nil
		}
		if kind != "" {
			d.errorf(t.at[i], "begin each with -", "one step is both %s and %s", kind, k)
			return nil
		}
		kind = k
	}
	if kind == "" {
		d.errorf(t.line, "give it one of "+list(stepKinds), "an empty step")
		return nil
	}
	n := &Node{Pos: Pos{d.file, t.line}}
	v := t.get(kind)
	switch kind {
	case "system", "user", "assistant", "tool", "text":
		n.Kind, n.Text = KindText, &TextNode{Content: d.text(v, kind)}
		if kind != "text" {
			n.Text.Role = kind
		}
		n.Text.line = v.body
	case "image":
		n.Kind, n.Image = KindImage, &ImageNode{URL: d.image(v)}
	case "return":
		n.Kind, n.Return = KindReturn, &ReturnNode{Value: d.expr(v, "return", 0)}
	default:
		f := d.fields(v, kind)
		n.Kind = Kind(kind)
		n.Name = f.name()
		d.node(n, f)
		f.done()
	}
	if p, ok := d.at(&fields{d: d, t: t, what: "step"}); ok {
		n.Pos = p
		if n.JSON != nil {
			n.JSON.written = nil // in another file
		}
	}
	return n
}

// node reads what a step of n's kind says.
func (d *decoder) node(n *Node, f *fields) {
	switch n.Kind {
	case KindRole:
		n.Role = &RoleNode{Role: f.str("role"), Body: d.body(f, "steps")}
	case KindGen:
		n.Gen = &GenNode{
			IgnoreEOS: f.bool("ignore_eos"), Tokens: d.tokenRules(f),
			MaxTokens: f.int("max_tokens"), MinTokens: f.int("min_tokens"), Stop: f.strs("stop"),
			StopRegex: f.strs("stop_regex"), Regex: f.str("regex"), EBNF: f.str("ebnf"), Tags: d.tags(f), Sampling: d.sampling(f),
			Terms: d.terms(f), Checks: d.checks(f), Tries: f.int("tries"), Logprobs: f.str("logprobs"),
		}
		d.samples(n, f)
	case KindSelect:
		n.Select = &SelectNode{Options: f.strs("options"), From: f.expr("from"), Values: d.values(f),
			Method: ScoreMethod(f.str("method")), Shares: f.str("shares"), Terms: d.terms(f)}
	case KindJSON:
		n.JSON = &JSONNode{
			Schema: d.schema(f), GoType: f.str("go_type"), MaxTokens: f.int("max_tokens"), Sampling: d.sampling(f),
			Terms: d.terms(f), Checks: d.checks(f), Tries: f.int("tries"), Logprobs: f.str("logprobs"),
			written: f.get("schema"),
		}
		d.samples(n, f)
	case KindFork:
		n.Fork = d.fork(f)
	case KindCall:
		n.Call = &CallNode{Func: f.str("func"), Result: f.typ("result"), Unsafe: f.bool("unsafe"), Terms: d.callTerms(f)}
		if args := f.get("args"); args != nil {
			if args.kind != treeList {
				args = listTree(args)
			}
			for _, a := range args.vals {
				n.Call.Args = append(n.Call.Args, d.expr(a, "call: args", 1))
			}
		}
	case KindWhen:
		n.When = &WhenNode{If: f.expr("if"), Then: d.body(f, "then")}
		if t := f.get("else"); t != nil {
			n.When.Else = append([]*Node{}, d.steps(t)...)
		}
	case KindRepeat:
		n.Repeat = &RepeatNode{Max: f.int("max"), Until: f.expr("until"), Index: f.str("index"), Body: d.body(f, "steps")}
	case KindForEach:
		n.ForEach = &ForEachNode{Over: f.expr("over"), As: f.str("as"), Body: d.body(f, "steps"), Yield: f.expr("yield")}
		if n.ForEach.As == "" {
			n.ForEach.As = "item"
		}
	case KindRun:
		n.Run = d.run(f)
	case KindSleep:
		n.Sleep = d.sleep(f)
	case KindWait:
		n.Wait = d.wait(f)
	case KindLet:
		n.Let = &LetNode{Value: f.expr("value"), Type: f.typ("type")}
	}
}

func (d *decoder) body(f *fields, key string) []*Node {
	t := f.get(key)
	if t == nil {
		d.errorf(f.t.line, "add "+key+":", "%s has no %s", f.what, key)
		return nil
	}
	return d.steps(t)
}

// schema reads a JSON Schema, or makes one of a type.
func (d *decoder) schema(f *fields) []byte {
	s, ty := f.get("schema"), f.get("type")
	switch {
	case s != nil && ty != nil:
		d.errorf(ty.line, "remove one of them", "%s has both schema and type", f.what)
	case s != nil:
		return s.appendJSON(nil)
	case ty != nil:
		return SchemaOfType(d.typ(ty, f.what))
	}
	return nil
}

func (d *decoder) fork(f *fields) *ForkNode {
	fk := &ForkNode{Items: f.strs("each"), Over: f.expr("over"), As: f.str("as"), Yield: f.expr("yield"), Errors: f.str("errors")}
	if t := f.get("steps"); t != nil {
		fk.Body = d.steps(t)
	}
	if t := f.get("arms"); t != nil {
		if t.kind != treeList {
			d.errorf(t.line, "write - {name: a, steps: [...], yield: x}", "%s: arms are %s, not a list", f.what, t.kind)
		}
		for _, a := range t.vals {
			af := d.fields(a, "arm")
			fk.Arms = append(fk.Arms, Arm{Name: af.name(), Body: d.body(af, "steps"), Yield: af.expr("yield")})
			af.done()
		}
	} else if f.t.get("steps") == nil {
		d.errorf(f.t.line, "add steps: or arms:", "%s has no steps", f.what)
	}
	if len(fk.Arms) == 0 && fk.As == "" {
		fk.As = "item"
	}
	fk.Join = d.join(f)
	return fk
}

func (d *decoder) join(f *fields) (p Policy) {
	switch j := f.get("join"); {
	case j == nil:
	case j.kind == treeMap:
		jf := d.fields(j, "join")
		p = Policy{Kind: "quorum", N: jf.int("quorum")}
		jf.done()
	default:
		p = Policy{Kind: d.str(j, f.what+": join")}
		if p.Kind == "quorum" {
			d.errorf(j.line, "write join: {quorum: 2}", "a quorum of how many?")
		}
	}
	return p
}

func (d *decoder) sampling(f *fields) Sampling {
	return Sampling{
		Temperature: f.float("temperature"), TopK: f.int("top_k"), TopP: f.float("top_p"), MinP: f.float("min_p"),
		RepetitionPenalty: f.float("repetition_penalty"), FrequencyPenalty: f.float("frequency_penalty"),
		PresencePenalty: f.float("presence_penalty"), Seed: f.seed(), LogitBias: d.logitBias(f),
	}
}

// SchemaOfType returns a JSON Schema for the values of a type.
func SchemaOfType(t Type) []byte { return typeSchema(t, 0).appendJSON(nil) }

func typeSchema(t Type, depth int) *tree {
	s := &tree{kind: treeMap}
	if depth > maxTypeDepth {
		return s
	}
	switch t.Kind {
	case TypeString:
		s.put("type", strTree("string"))
	case TypeInt: // what has more than 64 bits is none
		s.put("type", strTree("integer")).put("maximum", numTree("9223372036854775807")).put("minimum", numTree("-9223372036854775808"))
	case TypeFloat:
		s.put("type", strTree("number"))
	case TypeBool:
		s.put("type", strTree("boolean"))
	case TypeList:
		s.put("type", strTree("array")).put("items", typeSchema(t.elem(), depth+1))
	case TypeObject:
		s.put("type", strTree("object"))
		if len(t.Fields) == 0 {
			break
		}
		props, required := &tree{kind: treeMap}, listTree()
		for _, f := range t.Fields {
			props.put(f.Name, typeSchema(f.Type, depth+1))
			if !f.Optional {
				required.vals = append(required.vals, strTree(f.Name))
			}
		}
		s.put("properties", props)
		if len(required.vals) > 0 {
			s.put("required", required)
		}
		s.put("additionalProperties", boolTree(false))
	}
	return s
}
