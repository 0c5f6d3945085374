package vk

import "sync"

// stagePiece is the size of one staging buffer. Two of them let the host fill
// one while the device empties the other.
const stagePiece = 4 << 20

// stage copies between host memory and buffers that are not mapped.
type stage struct {
	mu    sync.Mutex
	slots [2]stageSlot
}

// A stageSlot is one staging buffer and the copy that uses it.
type stageSlot struct {
	up, down *Buffer
	cb       *CommandBuffer
	ticket   *Ticket
}

// wait waits for the slot's copy, as long as the device may take.
func (s *stageSlot) wait() error {
	if s.ticket == nil {
		return nil
	}
	err := s.ticket.Await()
	if err == nil {
		s.ticket.Release()
		s.ticket = nil
	}
	return err
}

// submit records and submits cmds on the slot.
func (s *stageSlot) submit(d *Device, cmds ...Command) (err error) {
	if s.cb == nil {
		if s.cb, err = d.NewCommandBuffer(); err != nil {
			return err
		}
	}
	if err := s.cb.Record(cmds); err != nil {
		return err
	}
	s.ticket, err = d.Submit([]*CommandBuffer{s.cb})
	return err
}

// FreeStaging frees the memory that Upload and Download go through where buffers are not mapped. They make it again when they
// need it.
func (d *Device) FreeStaging() error {
	d.stage.mu.Lock()
	defer d.stage.mu.Unlock()
	if err := d.stage.drain(); err != nil {
		return err
	}
	for i := range d.stage.slots {
		s := &d.stage.slots[i]
		s.up.Free()
		s.down.Free()
		s.up, s.down = nil, nil
	}
	return nil
}

// Upload writes data to b at byte off, and returns when it is there: by a plain
// write when b is mapped, else by staged copies that wait for the work submitted
// before. No submitted work may still use a mapped b. After an error nothing of
// the transfer is on its way any more, unless the device hangs.
func (d *Device) Upload(b *Buffer, off int64, data []byte) (err error) {
	if err := d.transferable(b, off, int64(len(data))); err != nil || len(data) == 0 {
		return err
	}
	if b.use == Imported {
		return invalid("writing to imported memory")
	}
	d.count.uploaded.Add(int64(len(data)))
	if b.mapped != nil {
		copy(b.mapped[off:], data)
		return b.Flush(off, int64(len(data)))
	}
	d.stage.mu.Lock()
	defer d.stage.mu.Unlock()
	defer func() {
		if err != nil {
			d.stage.settle(d)
		}
	}()
	for i := 0; len(data) > 0; i++ {
		s := &d.stage.slots[i%2]
		if err := s.wait(); err != nil {
			return err
		}
		if s.up == nil {
			up, err := d.NewBuffer(stagePiece, HostVisible)
			if err != nil {
				return err
			}
			s.up = up
		}
		n := copy(s.up.mapped, data)
		// The barrier at the end lets kernels of later submissions read the bytes.
		if err := s.submit(d, CopyBuffer(b, off, s.up, 0, int64(n)).After(), MemoryBarrier()); err != nil {
			return err
		}
		data, off = data[n:], off+int64(n)
	}
	return d.stage.drain()
}

// Download reads len(dst) bytes of b at byte off: by a plain read when b is
// mapped, else by staged copies that wait for the work submitted before. Work
// that wrote to a mapped b must have ended with a HostBarrier and be done. After
// an error nothing of the transfer is on its way, as with Upload.
func (d *Device) Download(b *Buffer, off int64, dst []byte) (err error) {
	if err := d.transferable(b, off, int64(len(dst))); err != nil || len(dst) == 0 {
		return err
	}
	d.count.downloaded.Add(int64(len(dst)))
	if b.mapped != nil {
		if err := b.Invalidate(off, int64(len(dst))); err != nil {
			return err
		}
		copy(dst, b.mapped[off:])
		return nil
	}
	d.stage.mu.Lock()
	defer d.stage.mu.Unlock()
	defer func() {
		if err != nil {
			d.stage.settle(d)
		}
	}()
	if err := d.stage.drain(); err != nil {
		return err
	}
	// Piece i+1 is copied by the device while the host reads piece i.
	pieces := int((int64(len(dst)) + stagePiece - 1) / stagePiece)
	for i := 0; i <= pieces; i++ {
		if i < pieces {
			s := &d.stage.slots[i%2]
			if s.down == nil {
				down, err := d.NewBuffer(stagePiece, Readback)
				if err != nil {
					return err
				}
				s.down = down
			}
			at := int64(i) * stagePiece
			n := min(int64(len(dst))-at, stagePiece)
			if err := s.submit(d, CopyBuffer(s.down, 0, b, off+at, n).After(), HostBarrier()); err != nil {
				return err
			}
		}
		if i > 0 {
			s := &d.stage.slots[(i-1)%2]
			if err := s.wait(); err != nil {
				return err
			}
			at := int64(i-1) * stagePiece
			n := min(int64(len(dst))-at, stagePiece)
			if err := s.down.Invalidate(0, n); err != nil {
				return err
			}
			copy(dst[at:at+n], s.down.mapped)
		}
	}
	return nil
}

// drain waits for both slots.
func (t *stage) drain() error {
	for i := range t.slots {
		if err := t.slots[i].wait(); err != nil {
			return err
		}
	}
	return nil
}

// settle waits for what a transfer that failed has left on its way: whoever
// learns of the failure may free the buffer.
func (t *stage) settle(d *Device) {
	if d.Quiesce() != nil {
		return // the staging buffers may still be in use
	}
	for i := range t.slots {
		t.slots[i].ticket = nil
	}
}

// free frees the staging buffers, which no copy uses any more.
func (t *stage) free() {
	for i := range t.slots {
		s := &t.slots[i]
		s.cb.Free()
		s.up.Free()
		s.down.Free()
		*s = stageSlot{}
	}
}

// transferable checks the range of a transfer.
func (d *Device) transferable(b *Buffer, off, n int64) error {
	if err := d.usable("vkQueueSubmit"); err != nil {
		return err
	}
	if b == nil || b.d != d || b.handle == 0 {
		return invalid("the buffer is freed or of another device")
	}
	if off < 0 || off+n > b.size {
		return invalid("range [%d, %d) of a buffer of %d bytes", off, off+n, b.size)
	}
	return nil
}
