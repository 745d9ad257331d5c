package grammar

func (c *compiler) compileEBNF() (*valueNode, error) {
	return nil, &Error{Kind: ErrUnsupported, Source: "ebnf", Msg: "not built yet"}
}
