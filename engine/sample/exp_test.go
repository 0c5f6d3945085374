package sample

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestExp(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	check := func(x float64) {
		got, want := exp(x), math.Exp(x)
		if math.Abs(got-want) > (5e-14-3e-16*x)*want {
			t.Fatalf("exp(%v) is %v, want %v", x, got, want)
		}
	}
	for range 100_000 {
		check(-rng.ExpFloat64() * 5)
		check(-rng.Float64() * 689)
	}
	for i := range 1000 {
		check(-float64(i) * expLog2)
		check(-float64(i) * expLog2 / 2)
	}
	check(-1e-300)
	if exp(0) != 1 || exp(-691) != 0 || exp(math.Inf(-1)) != 0 {
		t.Error("wrong at an end")
	}
}

func BenchmarkExp(b *testing.B) {
	sum, x := 0.0, 0.0
	for b.Loop() {
		if x -= 0.01; x < -50 {
			x = 0
		}
		sum += exp(x)
	}
	_ = sum
}

func BenchmarkMathExp(b *testing.B) {
	sum, x := 0.0, 0.0
	for b.Loop() {
		if x -= 0.01; x < -50 {
			x = 0
		}
		sum += math.Exp(x)
	}
	_ = sum
}
