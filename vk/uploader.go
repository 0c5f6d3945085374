package vk

import "errors"

// leastPiece is the smallest staging buffer that an Uploader settles for.
const leastPiece = 1 << 20

// An Uploader writes host bytes to many buffers through a ring of staging buffers: while the device copies from
// one, the host fills the next, so that reading a disk and transferring go on at the same time. Buffers that
// are mapped are written to directly. It is used by one goroutine, and it must be closed.
type Uploader struct {
	d     *Device
	piece int64
	slots []stageSlot
	at    int       // the slot that is being filled
	fill  int64     // bytes in it
	cmds  []Command // what copies them
}

// NewUploader returns an uploader with the given number of staging buffers of piece bytes each. They are made when
// they are needed first, and smaller when memory is short.
func (d *Device) NewUploader(piece int64, pieces int) (*Uploader, error) {
	if piece < leastPiece || pieces < 2 {
		return nil, invalid("an uploader with %d staging buffers of %d bytes", pieces, piece)
	}
	return &Uploader{d: d, piece: piece, slots: make([]stageSlot, pieces)}, nil
}

// Write queues data to be written to b at byte off. It returns when data has been read, which may be before it is
// in b: see Flush. Nothing orders two writes between flushes: they must not overlap.
func (u *Uploader) Write(b *Buffer, off int64, data []byte) error {
	d := u.d
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
	for len(data) > 0 {
		s, err := u.slot()
		if err != nil {
			return err
		}
		n := copy(s.up.mapped[u.fill:], data)
		c := CopyBuffer(b, off, s.up, u.fill, int64(n))
		if len(u.cmds) == 0 {
			c = c.After()
		}
		u.cmds = append(u.cmds, c)
		u.fill = roundUp(u.fill+int64(n), 4)
		data, off = data[n:], off+int64(n)
		if u.fill >= s.up.size {
			if err := u.submit(); err != nil {
				return err
			}
		}
	}
	return nil
}

// slot returns the slot to fill, whose last copy is done.
func (u *Uploader) slot() (*stageSlot, error) {
	s := &u.slots[u.at]
	if err := s.wait(); err != nil {
		return nil, err
	}
	for s.up == nil {
		up, err := u.d.NewBuffer(u.piece, HostVisible)
		if err == nil {
			s.up = up
			break
		}
		if u.piece /= 2; u.piece < leastPiece || u.d.lost.Load() || !errors.Is(err, ErrOutOfDeviceMemory) && !errors.Is(err, ErrUnsupported) {
			return nil, err
		}
	}
	return s, nil
}

// submit sends the slot's copies off and goes on to the next slot.
func (u *Uploader) submit() error {
	// The barrier at the end lets kernels of later submissions read the bytes.
	if err := u.slots[u.at].submit(u.d, append(u.cmds, MemoryBarrier())...); err != nil {
		return err
	}
	u.cmds, u.fill, u.at = u.cmds[:0], 0, (u.at+1)%len(u.slots)
	return nil
}

// Flush returns when everything written is where it belongs.
func (u *Uploader) Flush() error {
	if len(u.cmds) > 0 {
		if err := u.submit(); err != nil {
			return err
		}
	}
	for i := range u.slots {
		if err := u.slots[i].wait(); err != nil {
			return err
		}
	}
	return nil
}

// Close flushes, and frees the staging buffers, also after an error; only if the device hangs they stay, as it may still
// be reading them. It may be called twice.
func (u *Uploader) Close() error {
	err := u.Flush()
	if err != nil && u.d.Quiesce() != nil {
		return err
	}
	for i := range u.slots {
		s := &u.slots[i]
		s.cb.Free()
		s.up.Free()
	}
	u.slots, u.cmds, u.fill, u.at = u.slots[:0], u.cmds[:0], 0, 0
	return err
}
