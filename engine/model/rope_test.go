package model

import (
	"math"
	"slices"
	"sync"
	"testing"

	"github.com/calderaml/caldera/shaders"
)

var (
	plain    = RopeConfig{Base: 1e7, Dims: 64}
	yarnTest = RopeConfig{Base: 1e7, Dims: 64, Factor: 4, Original: 64}     // as in the oracle's check of the formula
	yarnReal = RopeConfig{Base: 1e7, Dims: 64, Factor: 4, Original: 262144} // the publisher's advice for a million tokens
)

// Rotations computed with 50 digits from the formulas of model-qwen35.md 5.4.
func TestRopeValues(t *testing.T) {
	tables := map[RopeConfig]*Rope{}
	for _, c := range []struct {
		config   RopeConfig
		pos, i   int
		cos, sin float64
	}{
		{plain, 1, 0, 0.540302305868, 0.841470984808},
		{plain, 1, 1, 0.822902080552, 0.568183215014},
		{plain, 1, 31, 1.0, 1.65481709994e-7},
		{plain, 1000, 0, 0.562379076291, 0.826879540532},
		{plain, 1000, 7, -0.405804091159, -0.913960086436},
		{plain, 1000, 20, 0.999110992049, 0.0421571532173},
		{plain, 1000, 31, 0.999999986308, 0.000165481709239},
		{plain, 262143, 0, -0.609161490569, 0.793046201938},
		{plain, 262143, 1, 0.92080315985, 0.390027615445},
		{plain, 262143, 7, -0.0274559087685, -0.999623015478},
		{plain, 262143, 16, 0.347881068797, 0.937538672254},
		{plain, 262143, 31, 0.999059240898, 0.0433662677132},

		// Pairs from 5 on are slowed by the whole factor, the first not at all.
		{yarnTest, 1, 0, 0.615204109861, 0.958123632936},
		{yarnTest, 1, 1, 0.991696027489, 0.559478312219},
		{yarnTest, 1, 7, 1.13859862336, 0.00837661390179},
		{yarnTest, 1000, 2, -0.462116410249, -1.04063702421},
		{yarnTest, 1000, 3, -0.463307061553, 1.04010747497},
		{yarnTest, 1000, 16, 1.13507307198, 0.0899228227728},
		{yarnTest, 262143, 0, -0.693609204508, 0.902985749723},
		{yarnTest, 262143, 1, -0.0300598315741, 1.13823257698},
		{yarnTest, 262143, 31, 1.13856247777, 0.0123481577162},

		// Pairs up to 14 are as without YaRN, those from 22 on slowed by the whole factor.
		{yarnReal, 1, 3, 1.11101798055, 0.249230896309},
		{yarnReal, 1000, 7, -0.462060483488, -1.04066185785},
		{yarnReal, 1000, 16, 1.10125207384, 0.289345576502},
		{yarnReal, 262143, 1, 1.04845358267, 0.444096923842},
		{yarnReal, 262143, 16, -0.215615716308, -1.11802811041},
		{yarnReal, 262143, 20, 0.140766845749, -1.12989454726},
		{yarnReal, 262143, 31, 1.13856247777, 0.0123481577162},
	} {
		if tables[c.config] == nil {
			tables[c.config] = NewRope(c.config)
		}
		row := tables[c.config].Row(c.pos)
		if len(row) != c.config.Dims {
			t.Fatalf("a row of %d floats for %d dimensions", len(row), c.config.Dims)
		}
		cos, sin := float64(row[2*c.i]), float64(row[2*c.i+1])
		if math.Abs(cos-c.cos) > 1e-7 || math.Abs(sin-c.sin) > 1e-7 {
			t.Errorf("%+v position %d pair %d: cos %.9g sin %.9g, want %.9g %.9g", c.config, c.pos, c.i, cos, sin, c.cos, c.sin)
		}
	}
}

// angles computes the angles of a position in another way than the code: base^(-2i/n) by repeated
// multiplication, and YaRN as a mixture of the two frequencies.
func angles(c RopeConfig, pos int) (theta []float64, scale float64) {
	step := math.Exp(-2 * math.Log(c.Base) / float64(c.Dims))
	f := 1.0
	for range c.Dims / 2 {
		theta = append(theta, f)
		f *= step
	}
	scale = 1
	if c.Factor > 1 {
		scale += math.Log(c.Factor) / 10
		// The pair that turns n times in the original context.
		pair := func(n float64) float64 {
			return float64(c.Dims) / 2 * math.Log(float64(c.Original)/(2*math.Pi*n)) / math.Log(c.Base)
		}
		clamp := func(x float64) float64 { return math.Min(float64(c.Dims-1), math.Max(0, x)) }
		low, high := clamp(math.Floor(pair(32))), clamp(math.Ceil(pair(1)))
		for i := range theta {
			slow := (float64(i) - low) / math.Max(high-low, 0.001)
			slow = math.Min(1, math.Max(0, slow))
			theta[i] = slow*theta[i]/c.Factor + (1-slow)*theta[i]
		}
	}
	for i := range theta {
		theta[i] *= float64(pos)
	}
	return theta, scale
}

func TestRopeFormula(t *testing.T) {
	for _, c := range []RopeConfig{
		plain, yarnTest, yarnReal,
		{Base: 1e7, Dims: 256}, {Base: 10000, Dims: 2}, {Base: 1e6, Dims: 128, Factor: 1, Original: 4096},
		{Base: 1e7, Dims: 64, Factor: 8, Original: 1},       // no pair turns even once
		{Base: 1.5, Dims: 64, Factor: 8, Original: 1 << 27}, // every pair turns often
	} {
		r := NewRope(c)
		for _, pos := range []int{0, 1, 2, 255, 256, 1000, 32767, 262143} {
			row := r.Row(pos)
			theta, scale := angles(c, pos)
			for i, a := range theta {
				sin, cos := math.Sincos(a)
				// Half a unit of a float32, and the angle's own error.
				tol := scale*6e-8 + a*1e-14
				if math.Abs(float64(row[2*i])-cos*scale) > tol || math.Abs(float64(row[2*i+1])-sin*scale) > tol {
					t.Fatalf("%+v position %d pair %d: cos %.9g sin %.9g, want %.9g %.9g", c, pos, i, row[2*i], row[2*i+1], cos*scale, sin*scale)
				}
			}
		}
		for i, v := range r.Row(0) {
			_, scale := angles(c, 0)
			if want := float32(scale) * float32(1-i%2); v != want {
				t.Errorf("%+v position 0: value %d is %g, want %g", c, i, v, want)
			}
		}
	}
}

// A file's keys arrive in the table that its model uses.
func TestRopeOfFile(t *testing.T) {
	d := onlyKeys(t, "qwen35-f32")
	d.set("rope.scaling.type", "yarn")
	d.set("rope.scaling.factor", float32(4))
	d.set("rope.scaling.original_context_length", uint32(64))
	c, err := ReadConfig(d.open())
	if err != nil {
		t.Fatal(err)
	}
	if c.Rope != yarnTest {
		t.Errorf("%+v, want %+v", c.Rope, yarnTest)
	}
}

// The step has room for as many dimensions as the file rotates.
func TestRopeDims(t *testing.T) {
	d := load(t, "qwen35-f32")
	d.set("rope.dimension_count", uint32(32))
	m := d.model()
	g, _ := m.Graph(shaders.StepShape{Rows: 1, Seqs: 1, Outs: 1, Pages: 1}, m.NewState(StateShape{Slots: 1, Pages: 1, KV: shaders.KVF32}), GraphOptions{})
	if g.Shape.Rope != 32 || len(NewRope(m.Rope).Row(1)) != 32 {
		t.Errorf("room for %d dimensions and rows of %d, want 32", g.Shape.Rope, len(NewRope(m.Rope).Row(1)))
	}
}

// Sessions share the table. Rows are the same whoever asked first, and a row that was handed out stays as it is
// when others are added.
func TestRopeConcurrently(t *testing.T) {
	want := NewRope(yarnReal)
	r := NewRope(yarnReal)
	first := r.Row(5)
	kept := slices.Clone(first)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 300 {
				pos := (i*37 + w*911) % 5000
				row := r.Row(pos)
				if i%50 == 0 && !slices.Equal(row, want.Row(pos)) {
					t.Errorf("row %d differs", pos)
				}
			}
		})
	}
	wg.Wait()
	if !slices.Equal(first, kept) {
		t.Error("a row changed after it was handed out")
	}
}

func TestAttnScale(t *testing.T) {
	for _, c := range []struct {
		key  float32
		dim  int
		want float32
	}{{0, 256, 0.0625}, {0, 128, 0.088388346}, {0.5, 256, 0.5}} {
		if got := attnScale(c.key, c.dim); got != c.want {
			t.Errorf("scale %g of heads of %d: %g, want %g", c.key, c.dim, got, c.want)
		}
	}
}
