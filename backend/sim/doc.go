// Package sim is a simulated accelerator: a model whose passes take a fixed time
// for each step and each token, on a real or a virtual clock, and whose text
// means nothing. With it one sees how long a device waits for the engine, and
// what plans cost, without a device.
//
// [New] returns an engine of package engine that runs on it, and the [Device],
// which counts how long it worked and waited.
package sim
