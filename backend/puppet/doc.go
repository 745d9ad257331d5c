// Package puppet is a scripted model: a [backend.Backend] whose answers a test
// writes down beforehand.
//
// Three types matter. A [Model] is the backend. A [Rule] says which requests it
// answers and how: with a text, with scores, with an error, on the nth call
// only. A [Gate] holds requests back until the test lets them go, so that a
// test decides the order in which answers arrive without sleeping.
//
//	m := puppet.New()
//	m.OnRegexp(`Look only at (\w+)\.`).Reply("$1 is fine")
//	m.OnID("severity").Scores(map[string]float64{"low": -2, "high": -0.1})
//	m.OnAny().Reply("ok")
//
// The vocabulary is the 256 bytes and an end token ([EOS]), so the ids of a text
// are its bytes and a test can read them. The same requests get the same
// answers; nothing depends on time.
//
// [Null] is a backend that answers everything at once, for measuring what a
// runtime itself costs.
package puppet
