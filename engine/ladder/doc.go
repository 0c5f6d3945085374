// Package ladder decides what an engine gives up when memory runs short while it is running, and when it takes it
// back. It is policy alone: it is told how much memory there is and answers with limits.
//
// # Rungs
//
// In this order, one step at a time:
//
//	Slots      fewer live sequences: half of the start's until 8, then 1
//	KVFormat   new pages in a colder format
//	Chunk      smaller prefill chunks: a quarter, and another
//	Snapshots  less memory for snapshots: half, a quarter, none
//	Queue      nothing new starts, requests wait
//	Refuse     new requests are refused
//
// Steps that would change nothing (one slot only, no colder format, no snapshots) do not exist. They are taken back in
// reverse order.
//
// # When
//
// What counts is headroom: the bytes that a source (the device's budget, our own limit, the host's memory) has left,
// against marks that follow from the source's limit ([Marks]). With defaults:
//
//	limit     critical    low         high
//	256 MiB   3.2 MiB     12.8 MiB    32 MiB
//	2 GiB     25.6 MiB    102 MiB     256 MiB
//	80 GiB    64 MiB      256 MiB     640 MiB
//
// The low mark is a part of the limit, since a small limit comes with a small model, but no more than 256 MiB, which
// is many pages for any model: a large card is not given up for memory that could be used.
//
// Below the low mark of any source the ladder climbs a step, and then waits ([Config].Settle) for that to show before
// the next; below the critical mark it waits less ([Config].Urgent). It goes down a step when every known source has
// stayed above its high mark for a time ([Config].Calm) that starts again with every change. Between the marks
// nothing happens.
//
// When a climb follows a descent within [Config].MaxCalm, what was taken back was not to be had for long, and the
// time before the first step down becomes four times as long, up to MaxCalm. Every step down that lasts halves it for
// the next, not below Calm, and it is Calm again once the ladder has been at its foot and nothing was low for twice
// MaxCalm. So a neighbour that takes memory and returns it in turns costs a few changes at first and then almost none.
//
// A source that does not tell is never a reason to climb or to go down, and nothing happens while none tells.
package ladder
