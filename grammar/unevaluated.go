package grammar

// unevaluated is the formula of unevaluatedProperties and unevaluatedItems.
func (c *compiler) unevaluated(s *schema, k string, f fid) fid {
	c.refuse(ErrUnsupported, s, k, "not enforced")
	return fTrue
}
