package excerpt

import (
	"context"
	"fmt"

	"github.com/calderaml/caldera/engine/model"
	"github.com/calderaml/caldera/scheduler"
)

// Load puts a model's weights on a die, as copies.
func Load(ctx context.Context, die *scheduler.Die, m *model.Model) error {
	for _, it := range m.Weights {
		if err := ctx.Err(); err != nil {
			return err
		}
		data, err := it.Bytes()
		if err == nil {
			err = die.Allocate(it.Buf, false)
		}
		if err == nil {
			err = die.Upload(it.Buf.View().Slice(0, int64(len(data))), data)
		}
		if err != nil {
			return fmt.Errorf("weights %s: %w", it.Buf.Name, err)
		}
	}
	return nil
}

// Unload takes a model's weights off a die.
func Unload(die *scheduler.Die, m *model.Model) {
	for _, it := range m.Weights {
		die.Free(it.Buf)
	}
}
