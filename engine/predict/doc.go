// Package predict computes how fast a model would run on a device that need not be present: from the graph of a step,
// lowered to the device's dispatches and barriers by the scheduler's own code, and either a table of the device's figures
// ([Devices], docs/devices.md) or rates measured on a present device with a sample of the model ([Measure]).
//
// On a device of the table, an op takes the largest of
//
//	bytes       what it reads and writes, over the bandwidth,
//	arithmetic  its operations and those that decode its weights, over the FP32 rate,
//	serial      the rows that it goes through one after the other, times what one takes,
//
// and its dispatches and barriers each cost a fixed time on top. Rates are lower where a dispatch has few invocations.
// A step adds what the host does. What bounds an op is the term that its time counts under.
package predict
