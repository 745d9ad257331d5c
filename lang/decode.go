package lang

import "errors"

// Decode reads a program file.
func Decode(data []byte, file string, opts ...DecodeOption) (*Graph, error) {
	return nil, errors.New("not there yet")
}

// DecodeOption is an option of Decode.
type DecodeOption func(*decoder)

type decoder struct{}

// JSON returns the graph as a JSON document.
func (g *Graph) JSON() ([]byte, error) { return nil, errors.New("not there yet") }

// YAML returns the graph as a YAML document.
func (g *Graph) YAML() ([]byte, error) { return nil, errors.New("not there yet") }

// Hash names the program version.
func (g *Graph) Hash() string { return "" }
