package vk

import (
	"fmt"

	vulkan "github.com/goki/vulkan"
)

// MaxPush is the most bytes of push constants a command carries.
const MaxPush = 128

// A CommandKind says what a Command does.
type CommandKind uint32

// The numbers are those of the supplement.
const (
	KindDispatch CommandKind = iota + 1
	KindIndirect
	KindCopy
	KindFill
	KindResetQueries
	KindHostBarrier
	KindBarrier
)

// String returns the kind in lower case.
func (k CommandKind) String() string {
	switch k {
	case KindDispatch:
		return "dispatch"
	case KindIndirect:
		return "indirect dispatch"
	case KindCopy:
		return "copy"
	case KindFill:
		return "fill"
	case KindResetQueries:
		return "reset queries"
	case KindHostBarrier:
		return "host barrier"
	case KindBarrier:
		return "barrier"
	}
	return fmt.Sprintf("command %d", uint32(k))
}

// A Command is one step of a command buffer, made by Dispatch, CopyBuffer and
// so on. It holds handles but no Go pointers, so that a whole slice of them is
// recorded in one call: the objects it names must be kept until the work is
// done. A command that was made with invalid arguments is refused by Record.
//
// The layout is that of sup_command.
type Command struct {
	Kind CommandKind
	// BarrierBefore makes everything recorded and submitted before visible to
	// this command and what follows it.
	BarrierBefore     bool
	bad               uint8
	owner             uint16
	Groups            [3]uint32 // of a dispatch
	pushLen, pushNeed uint32
	before, after     uint32 // query + 1
	value             uint32
	pipeline, layout  handle
	set               handle
	src, dst          handle
	srcOff, dstOff    int64
	size              int64
	queries           handle
	push              [MaxPush]byte
}

// Why a command is invalid.
const (
	badObject uint8 = iota + 1
	badRange
	badAlign
	badPush
	badSet
	badQuery
	badImported
)

var badText = [...]string{
	badObject:   "an object is missing, freed or of another device",
	badRange:    "a range lies outside its buffer",
	badAlign:    "an offset or size is not a multiple of 4",
	badPush:     "the push constants are too long",
	badSet:      "the set was made for a kernel with other operands",
	badQuery:    "there is no such query",
	badImported: "imported memory is read only",
}

// Dispatch runs a kernel over groups workgroups. The push constants are copied;
// there must be exactly Pipeline.PushBytes of them. The set may be nil for a
// kernel without buffers.
func Dispatch(p *Pipeline, s *Set, groups [3]uint32, push []byte) Command {
	c := Command{Kind: KindDispatch, Groups: groups}
	c.kernel(p, s, push)
	return c
}

// DispatchIndirect runs a kernel over the three uint32 group counts at byte off
// of args, read when the command executes. They must keep to Profile.MaxGroups.
func DispatchIndirect(p *Pipeline, s *Set, args *Buffer, off int64, push []byte) Command {
	c := Command{Kind: KindIndirect, srcOff: off}
	c.kernel(p, s, push)
	c.src = c.buffer(args, off, 12)
	c.aligned(off)
	return c
}

// CopyBuffer copies size bytes. The ranges must not overlap.
func CopyBuffer(dst *Buffer, dstOff int64, src *Buffer, srcOff, size int64) Command {
	c := Command{Kind: KindCopy, srcOff: srcOff, dstOff: dstOff, size: size}
	c.src = c.buffer(src, srcOff, size)
	c.dst = c.target(dst, dstOff, size)
	if src == dst && srcOff < dstOff+size && dstOff < srcOff+size {
		c.bad = badRange
	}
	return c
}

// FillBuffer sets size bytes to repetitions of value. Offset and size must be
// multiples of 4.
func FillBuffer(b *Buffer, off, size int64, value uint32) Command {
	c := Command{Kind: KindFill, dstOff: off, size: size, value: value}
	c.dst = c.target(b, off, size)
	c.aligned(off | size)
	return c
}

// ResetQueries makes all of q's queries unavailable, which must happen before
// each time they are written.
func ResetQueries(q *Queries) Command {
	c := Command{Kind: KindResetQueries}
	if q == nil || q.handle == 0 {
		c.bad = badObject
		return c
	}
	c.queries, c.value, c.owner = q.handle, uint32(q.n), q.d.id
	return c
}

// HostBarrier makes everything before it visible to the host once the work is
// done. It belongs at the end of work whose results are read through Mapped.
func HostBarrier() Command { return Command{Kind: KindHostBarrier} }

// MemoryBarrier is a barrier without a command: it orders everything before it
// before everything after it, later submissions included.
func MemoryBarrier() Command { return Command{Kind: KindBarrier, BarrierBefore: true} }

// After returns c with a barrier before it.
func (c Command) After() Command {
	c.BarrierBefore = true
	return c
}

// Stamped returns c with the time written to query before when everything
// before it is done, and to query after when it is done itself. -1 writes none.
func (c Command) Stamped(q *Queries, before, after int) Command {
	if q == nil || q.handle == 0 || c.Kind == KindResetQueries {
		c.bad = badObject
		return c
	}
	if before < -1 || after < -1 || before >= q.n || after >= q.n {
		c.bad = badQuery
		return c
	}
	c.of(q.d)
	c.queries, c.before, c.after = q.handle, uint32(before+1), uint32(after+1)
	return c
}

// of notes that c uses an object of d.
func (c *Command) of(d *Device) {
	if c.owner != 0 && c.owner != d.id {
		c.bad = badObject
	}
	c.owner = d.id
}

func (c *Command) kernel(p *Pipeline, s *Set, push []byte) {
	if p == nil || p.handle == 0 {
		c.bad = badObject
		return
	}
	c.of(p.d)
	c.pipeline, c.layout = p.handle, p.layout.layout
	c.pushNeed = uint32(p.layout.key.push)
	if len(push) > MaxPush {
		c.bad = badPush
		return
	}
	c.pushLen = uint32(copy(c.push[:], push))
	switch {
	case s != nil && (s.pool.d != p.d || s.pool.closed):
		c.bad = badObject
	case s != nil && s.layout != p.layout, s == nil && p.layout.key.buffers > 0:
		c.bad = badSet
	case s != nil:
		c.set = s.handle
	}
}

func (c *Command) buffer(b *Buffer, off, size int64) handle {
	if b == nil || b.handle == 0 {
		c.bad = badObject
		return 0
	}
	c.of(b.d)
	if off < 0 || size <= 0 || off+size > b.size {
		c.bad = badRange
	}
	return b.handle
}

func (c *Command) target(b *Buffer, off, size int64) handle {
	h := c.buffer(b, off, size)
	if h != 0 && b.use == Imported {
		c.bad = badImported
	}
	return h
}

func (c *Command) aligned(n int64) {
	if n%4 != 0 && c.bad == 0 {
		c.bad = badAlign
	}
}

// A CommandBuffer is a recorded sequence of commands that may be submitted any
// number of times, but not while it still executes.
type CommandBuffer struct {
	d        *Device
	cb       vulkan.CommandBuffer
	recorded bool
	last     uint64 // serial of the last submission
	// What one execution counts.
	dispatches, barriers, copies int64
}

// NewCommandBuffer makes an empty command buffer.
func (d *Device) NewCommandBuffer() (*CommandBuffer, error) {
	if err := d.usable("vkAllocateCommandBuffers"); err != nil {
		return nil, err
	}
	d.recording.Lock()
	defer d.recording.Unlock()
	c := &CommandBuffer{d: d}
	if err := d.do("vkAllocateCommandBuffers", "", func() (r Result) {
		c.cb, r = d.raw.allocateCommandBuffer(d.commands)
		return r
	}); err != nil {
		return nil, err
	}
	d.own(c)
	return c, nil
}

// Record replaces the contents of c by cmds. The error wraps ErrInvalid when a
// command is not valid, naming it, and ErrBusy when c still executes.
func (c *CommandBuffer) Record(cmds []Command) error {
	if err := c.idle("vkBeginCommandBuffer"); err != nil {
		return err
	}
	var dispatches, barriers, copies int64
	for i := range cmds {
		k := &cmds[i]
		if err := c.check(k); err != nil {
			return fmt.Errorf("command %d, %s: %w", i, k.Kind, err)
		}
		if k.BarrierBefore {
			barriers++
		}
		switch k.Kind {
		case KindDispatch, KindIndirect:
			dispatches++
		case KindCopy, KindFill:
			copies++
		case KindHostBarrier:
			barriers++
		}
	}
	d := c.d
	d.recording.Lock()
	defer d.recording.Unlock()
	c.recorded = false
	var op string
	d.count.recordings.Add(1)
	r := d.call("vkBeginCommandBuffer", func() (r Result) {
		op, r = d.raw.record(c.cb, cmds)
		return r
	})
	if r == Success {
		op = "vkEndCommandBuffer"
		r = d.call(op, func() Result { return Success })
	}
	if r != Success {
		if op == "" {
			op = "vkBeginCommandBuffer"
		}
		return &Error{op, r, fmt.Sprintf("%d commands", len(cmds))}
	}
	c.recorded = true
	c.dispatches, c.barriers, c.copies = dispatches, barriers, copies
	return nil
}

func (c *CommandBuffer) check(k *Command) error {
	if k.bad != 0 {
		return invalid("%s", badText[k.bad])
	}
	if k.owner != 0 && k.owner != c.d.id {
		return invalid("%s", badText[badObject])
	}
	switch k.Kind {
	case KindDispatch, KindIndirect:
		// Unset push constants end the process on some drivers.
		if k.pushLen != k.pushNeed {
			return invalid("%d bytes of push constants, the kernel takes %d", k.pushLen, k.pushNeed)
		}
		for i, n := range k.Groups {
			if k.Kind == KindDispatch && n > c.d.profile.MaxGroups[i] {
				return invalid("%d groups, the profile allows %d", k.Groups, c.d.profile.MaxGroups)
			}
		}
	case KindCopy, KindFill, KindResetQueries, KindHostBarrier, KindBarrier:
	default:
		return invalid("unknown kind")
	}
	return nil
}

// idle returns an error unless c may be changed.
func (c *CommandBuffer) idle(op string) error {
	if err := c.d.usable(op); err != nil {
		return err
	}
	if c.cb == nil {
		return ErrClosed
	}
	done, err := c.d.submits.finished(c.d, c.last)
	if err != nil {
		return err
	}
	if !done {
		return fmt.Errorf("vk: %s: %w", op, ErrBusy)
	}
	return nil
}

// Reset empties c.
func (c *CommandBuffer) Reset() error {
	if err := c.idle("vkResetCommandBuffer"); err != nil {
		return err
	}
	c.d.recording.Lock()
	defer c.d.recording.Unlock()
	c.recorded = false
	return c.d.do("vkResetCommandBuffer", "", func() Result { return c.d.raw.resetCommandBuffer(c.cb) })
}

// Free frees c, which must not be executing. It may be called twice, and on nil.
func (c *CommandBuffer) Free() {
	if c != nil && c.d.disown(c) {
		c.release()
	}
}

func (c *CommandBuffer) release() {
	c.d.recording.Lock()
	defer c.d.recording.Unlock()
	c.d.raw.freeCommandBuffer(c.d.commands, c.cb)
	c.cb, c.recorded = nil, false
}
