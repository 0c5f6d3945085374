package server

import (
	"testing"
	"time"

	"github.com/calderaml/caldera/server/page/pagetest"
)

// A browser drives the page of a server with a model.
func TestPage(t *testing.T) {
	c := demoServer(t)
	pagetest.Drive(t, c.url)
	c.idle(20 * time.Second)
}
