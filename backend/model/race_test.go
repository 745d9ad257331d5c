//go:build race

package model

func init() { underRace = true }
