package remote

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// rawJSON is a document that is sent as it stands, its key order kept.
func rawJSON(doc []byte) json.RawMessage { return json.RawMessage(doc) }

// maxDepth bounds the nesting of schemas and answers that are walked here: a
// stack that overflows cannot be recovered.
const maxDepth = 256

var (
	errNotJSON = errors.New("not one JSON value")
	errTooDeep = fmt.Errorf("nested more than %d deep", maxDepth)
)

// depthOK reports whether a text's brackets nest at most maxDepth deep.
func depthOK(doc []byte) bool {
	depth, quoted := 0, false
	for i := 0; i < len(doc); i++ {
		switch c := doc[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return false
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return true
}

// noLoader keeps a schema from reading files or URLs.
type noLoader struct{}

func (noLoader) Load(url string) (any, error) {
	return nil, fmt.Errorf("$ref to %q: only references inside the schema are followed", url)
}

// schemaCheck compiles a schema into a check that returns an answer's JSON,
// without the fence that models like to put around it.
func schemaCheck(schema []byte) (func(string) (string, error), error) {
	if !depthOK(schema) {
		return nil, fmt.Errorf("%w: %w", errNotJSON, errTooDeep)
	}
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(schema))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotJSON, err)
	}
	c := jsonschema.NewCompiler()
	c.UseLoader(noLoader{})
	if err := c.AddResource("mem:schema", doc); err != nil {
		return nil, err
	}
	compiled, err := c.Compile("mem:schema")
	if err != nil {
		return nil, err
	}
	return func(answer string) (string, error) {
		text := unfence(answer)
		if !depthOK([]byte(text)) {
			return "", errTooDeep
		}
		v, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
		if err != nil {
			return "", fmt.Errorf("%w: %w", errNotJSON, err)
		}
		if err := compiled.Validate(v); err != nil {
			return "", err
		}
		return text, nil
	}, nil
}

// unfence strips white space and a Markdown fence.
func unfence(s string) string {
	s = strings.TrimSpace(s)
	if rest, ok := strings.CutPrefix(s, "```"); ok {
		if body, ok := strings.CutSuffix(rest, "```"); ok {
			if _, after, ok := strings.Cut(body, "\n"); ok {
				return strings.TrimSpace(after)
			}
		}
	}
	return s
}

func regexCheck(pattern string) (func(string) (string, error), error) {
	re, err := regexp.Compile(`\A(?:` + pattern + `)\z`)
	if err != nil {
		return nil, err
	}
	return func(answer string) (string, error) {
		if re.MatchString(answer) {
			return answer, nil
		}
		if t := strings.TrimSpace(answer); re.MatchString(t) {
			return t, nil
		}
		return "", fmt.Errorf("the text does not match %s", pattern)
	}, nil
}

// choiceCheck returns the check of a choice; wrapped answers are the object of
// [choiceSchema].
func choiceCheck(choices []string, wrapped bool) func(string) (string, error) {
	return func(answer string) (string, error) {
		if wrapped {
			var v struct {
				Choice *string `json:"choice"`
			}
			if json.Unmarshal([]byte(unfence(answer)), &v) == nil && v.Choice != nil {
				answer = *v.Choice
			}
		}
		if slices.Contains(choices, answer) {
			return answer, nil
		}
		if t := strings.TrimSpace(answer); wrapped && slices.Contains(choices, t) {
			return t, nil
		}
		return "", errors.New("the text is none of the choices")
	}
}

// isStrictSchema reports whether a schema keeps OpenAI's rules for strict ones:
// the root is an object, and every object lists all its properties as required
// and allows no others.
func isStrictSchema(schema []byte) bool {
	if !depthOK(schema) {
		return false
	}
	var root map[string]any
	if json.Unmarshal(schema, &root) != nil || root["type"] != "object" {
		return false
	}
	return strictNode(root)
}

// unstrict lists keywords that OpenAI refuses in strict schemas.
var unstrict = []string{"allOf", "oneOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas", "patternProperties", "propertyNames", "unevaluatedProperties", "contains", "prefixItems", "uniqueItems"}

func strictNode(v any) bool {
	switch v := v.(type) {
	case []any:
		return !slices.ContainsFunc(v, func(x any) bool { return !strictNode(x) })
	case map[string]any:
		for _, k := range unstrict {
			if _, ok := v[k]; ok {
				return false
			}
		}
		props, isObject := v["properties"].(map[string]any)
		if isObject || v["type"] == "object" {
			required, _ := v["required"].([]any)
			if v["additionalProperties"] != false || len(required) != len(props) {
				return false
			}
		}
		for k, x := range v {
			switch k {
			case "enum", "const", "default", "examples", "required":
			case "properties", "$defs", "definitions":
				m, ok := x.(map[string]any)
				if !ok {
					return false
				}
				for _, y := range m {
					if !strictNode(y) {
						return false
					}
				}
			default:
				if !strictNode(x) {
					return false
				}
			}
		}
	}
	return true
}
