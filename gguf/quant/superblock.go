package quant

// superblock is the scratch memory of the encoders of 256-element formats. The
// searches see the elements brought near 1 by a power of two (see search.go);
// the last rounding to codes sees the elements themselves and the stored scales.
type superblock struct {
	im      importance
	src     []float32 // the elements
	at      int       // position of src in the row
	unit    float32   // src = unit·x
	x, w    [256]float32
	codes   [256]uint8
	scale   [16]float32 // of each group, in units
	min     [16]float32 // offset of each group, in units, zero or positive
	sum     [16]float32 // Σw of each group
	scaleQ  [16]uint8   // code of scale
	minQ    [16]uint8   // code of min
	hasIm   bool
	squares float32 // Σx²
}

// start prepares for a row with the importance vector im, or nil.
func (s *superblock) start(im []float32) {
	if s.hasIm = im != nil; s.hasIm {
		s.im = newImportance(im)
	}
}

// load takes the 256 elements from position at of the row.
func (s *superblock) load(src []float32, at int) {
	s.src, s.at = src[:256], at
	amax, _ := extremes(s.src)
	unit, inv := binade(amax)
	s.unit = unit
	for i, v := range s.src {
		s.x[i] = v * inv
	}
	if s.hasIm {
		s.squares = squares(s.x[:])
	}
}

// weigh sets the weights to im·√(spread·mean(x²)+x²), and the sums over groups
// of size elements.
func (s *superblock) weigh(spread float32, size int) {
	s.im.weights(s.w[:], s.x[:], s.at, spread*s.squares/256)
	for k := range 256 / size {
		var sum float32
		for _, v := range s.w[k*size:][:size] {
			sum += v
		}
		s.sum[k] = sum
	}
}

// weighSquare sets the weights to x².
func (s *superblock) weighSquare() {
	for i, v := range s.x {
		s.w[i] = float32(v * v)
	}
}

// offsetFormat is a format whose groups have a scale and a minimum, both codes
// in steps of one half float each.
type offsetFormat struct {
	size    int     // elements per group
	top     float32 // largest code of an element
	levels  float32 // largest code of a scale or minimum
	average bool    // without importance, weights √mean(x²)+|x| instead of |x|
	plain   ladder  // without importance
	spread  float32 // with importance, factor of the mean square
}

// searchOffset finds the scales and minima of all groups and their codes, and
// returns the steps d and dmin (weights.md 3.2, Q2_K, Q4_K and Q5_K).
func (s *superblock) searchOffset(f *offsetFormat) (d, dmin float32) {
	groups, steps := 256/f.size, f.plain
	if s.hasIm {
		s.weigh(f.spread, f.size)
		steps = ladder{start: -0.9, step: 0.05, count: 36}
	}
	for k := range groups {
		x, w := s.x[k*f.size:][:f.size], s.w[k*f.size:][:f.size]
		if !s.hasIm {
			var av float32
			if f.average {
				av = sqrt(squares(x) / float32(f.size))
			}
			for i, v := range x {
				w[i] = av + abs(v)
			}
		}
		s.scale[k], s.min[k] = fitOffset(s.codes[k*f.size:][:f.size], x, w, f.top, steps)
	}
	if s.hasIm {
		d = fitPositive(s.scaleQ[:groups], s.scale[:groups], s.sum[:groups], f.levels)
		dmin = fitPositive(s.minQ[:groups], s.min[:groups], s.sum[:groups], f.levels)
	} else {
		d = levels(s.scaleQ[:groups], s.scale[:groups], f.levels)
		dmin = levels(s.minQ[:groups], s.min[:groups], f.levels)
	}
	return d * s.unit, dmin * s.unit
}

// levels rounds x ≥ 0 to codes 0 … top of which the largest element gets top,
// and returns the step.
func levels(codes []uint8, x []float32, top float32) float32 {
	var mx float32
	for _, v := range x {
		mx = max(mx, v)
	}
	if mx < tiny {
		clear(codes)
		return 0
	}
	inv := top / mx
	for i, v := range x {
		codes[i] = uint8(clamp(rint(inv*v), 0, top))
	}
	return mx / top
}

// recodeOffset rounds the elements again with the steps as they are stored. A
// group whose stored scale is 0 decodes to its minimum whatever its codes.
func (s *superblock) recodeOffset(f *offsetFormat, d, dmin float32) {
	for k := range 256 / f.size {
		scale, m := d*float32(s.scaleQ[k]), dmin*float32(s.minQ[k])
		if scale == 0 {
			continue
		}
		codes := s.codes[k*f.size:][:f.size]
		for i, v := range s.src[k*f.size:][:f.size] {
			codes[i] = uint8(rint(clamp((v+m)/scale, 0, f.top)))
		}
	}
}

// recodeSigned rounds the elements of 16-element group k again with the scale
// as it is stored, to codes from −nmax, stored from 0.
func (s *superblock) recodeSigned(k int, scale, nmax float32) {
	if scale == 0 {
		return
	}
	codes := s.codes[16*k:][:16]
	for i, v := range s.src[16*k:][:16] {
		codes[i] = uint8(rint(clamp(v/scale, -nmax, nmax-1)) + nmax)
	}
}

// largest returns the first of the group scales that has the largest magnitude.
func (s *superblock) largest(groups int) float32 {
	_, m := extremes(s.scale[:groups])
	return m
}

// put2 stores 256 codes of 2 bits in b[0:64]: each half of 128 elements is four
// runs of 32 that share 32 bytes, run j in bits 2j and 2j+1.
func put2(b []byte, codes *[256]uint8) {
	for half := range 2 {
		c := codes[128*half:][:128]
		for l := range 32 {
			b[32*half+l] = c[l]&3 | c[l+32]&3<<2 | c[l+64]&3<<4 | c[l+96]<<6
		}
	}
}
