package server

import (
	"context"
	"fmt"
	"time"

	"github.com/calderaml/caldera/engine"
)

// A model that is lost again and again is not worth opening once more: as many times within this time end the server.
const (
	lostMost   = 2
	lostWithin = 10 * time.Minute
)

// Keep gives the server the model that open opens, and opens it again when its device is lost or hangs, or its file has changed. It returns once ctx has ended
// and the model is closed, or with the error of opening, in which case there is no model any more. Open returns no
// engine and no error when its context has ended. Ready is called with each model that is in use from then on.
func (s *Server) Keep(ctx context.Context, open func(context.Context) (*engine.Engine, error), ready func(*engine.Engine)) error {
	var losses []time.Time
	for {
		e, err := open(ctx)
		if err != nil || e == nil {
			return err
		}
		s.Ready(e)
		ready(e)
		var why error
		select {
		case <-ctx.Done():
			s.model.Store(nil)
			return e.Close()
		case why = <-s.lost:
		}
		s.cfg.Log.Error().Str("device", e.Device()).Err(why).Msg("the model cannot go on and is opened again")
		if err := e.Close(); err != nil {
			// What cannot be freed of it is no reason to stay without one.
			s.cfg.Log.Warn().Err(err).Msg("closing the model")
		}
		losses = append(losses, time.Now())
		if n := len(losses); n >= lostMost && losses[n-1].Sub(losses[n-lostMost]) < lostWithin {
			return fmt.Errorf("the model could not go on for the %d. time within %s: %w", lostMost, lostWithin, why)
		}
	}
}
