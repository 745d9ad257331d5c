package lang

import (
	"encoding/json"
	"errors"
	"fmt"
)

// EncodeInputs writes the values of the graph's inputs as a JSON object, in the
// order in which the graph declares them. Inputs without a value are left out.
func (g *Graph) EncodeInputs(vars map[string]any) json.RawMessage {
	buf := []byte{'{'}
	for _, in := range g.Inputs {
		v, ok := vars[in.Name]
		if !ok {
			continue
		}
		if len(buf) > 1 {
			buf = append(buf, ',')
		}
		buf = append(buf, FormatJSON(in.Name, Type{})...)
		buf = append(buf, ':')
		buf = append(buf, FormatJSON(v, in.Type)...)
	}
	return append(buf, '}')
}

// DecodeInputs reads what [Graph.EncodeInputs] wrote, each value with the type
// that the graph declares. Names that the graph does not know are ignored.
func (g *Graph) DecodeInputs(data json.RawMessage) (map[string]any, error) {
	v, err := DecodeValue(data)
	if err != nil {
		return nil, fmt.Errorf("inputs: %w", err)
	}
	given, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("inputs: not an object")
	}
	vars := make(map[string]any, len(given))
	for _, in := range g.Inputs {
		v, ok := given[in.Name]
		if !ok {
			continue
		}
		if vars[in.Name], err = Convert(v, in.Type); err != nil {
			return nil, fmt.Errorf("input %q: %w", in.Name, err)
		}
	}
	return vars, nil
}
