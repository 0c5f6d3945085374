package ladder_test

import (
	"fmt"
	"time"

	"github.com/calderaml/caldera/engine/ladder"
)

func Example() {
	l, err := ladder.New(ladder.Config{
		Slots: 16, Formats: []string{"f16", "q8_0", "q4_0"}, Chunk: 512, SnapshotBytes: 1 << 30,
	})
	if err != nil {
		panic(err)
	}
	now := time.Now()
	pressure := ladder.Pressure{
		{Source: ladder.Device, Used: 1956 << 20, Limit: 2 << 30, Available: -1},
		{Source: ladder.Own, Used: -1, Limit: -1, Available: -1}, // no limit was given
		{Source: ladder.Host, Used: -1, Limit: 16 << 30, Available: 9 << 30},
	}
	for range 3 {
		_, events := l.Observe(now, pressure)
		for _, e := range events {
			fmt.Println(e)
		}
		now = now.Add(2 * time.Second)
	}
	fmt.Printf("%+v\n", l.Limits())
	pressure[0].Used = 1 << 30
	for range 31 {
		_, events := l.Observe(now, pressure)
		for _, e := range events {
			fmt.Println(e)
		}
		now = now.Add(time.Second)
	}
	// Output:
	// memory pressure: 92 MiB of the device budget left (of 2.00 GiB): live slots 16 -> 8
	// memory pressure: 92 MiB of the device budget left (of 2.00 GiB): live slots 8 -> 1
	// memory pressure: 92 MiB of the device budget left (of 2.00 GiB): KV format of new pages f16 -> q8_0
	// {Slots:1 Cold:1 Chunk:512 SnapshotBytes:1073741824 Queue:false Refuse:false}
	// memory pressure eases: 1.00 GiB of the device budget left (of 2.00 GiB): KV format of new pages q8_0 -> f16
}

func ExamplePressure_Tightest() {
	pressure := ladder.Pressure{
		{Source: ladder.Device, Used: 20 << 30, Limit: 24 << 30, Available: -1},
		{Source: ladder.Own, Used: 240 << 20, Limit: 256 << 20, Available: -1},
	}
	reading, _ := pressure.Tightest(ladder.Marks{})
	fmt.Println(reading)
	// Output:
	// 16 MiB of the memory limit left (of 256 MiB)
}
