package shaders

import "fmt"

// RecodePage writes a page of one layer's keys or values, of tokens of width elements, in another format. Into a
// quantised one it does what [KVEncode] does; out of one it decodes. The bytes must be aligned to 4.
func RecodePage(dst []byte, to KVFormat, src []byte, from KVFormat, width int) error {
	for _, f := range []KVFormat{to, from} {
		if int(f) >= len(kvFormats) {
			return fmt.Errorf("KV pages of format %d", f)
		}
		if err := f.CheckWidth(width); err != nil {
			return err
		}
	}
	if int64(len(dst)) != to.PageBytes(width) || int64(len(src)) != from.PageBytes(width) {
		return fmt.Errorf("KV pages of %d bytes in %v and %d in %v, for tokens of %d elements", len(src), from, len(dst), to, width)
	}
	in, out := kvWords{Words(src), from, width}, kvWords{Words(dst), to, width}
	if to.Cold() {
		return out.page(0).fill(in, 0)
	}
	row := make([]float32, width)
	for t := range PageTokens {
		if err := in.load(row, t, 0); err != nil {
			return err
		}
		for i, x := range row {
			out.set(t*width+i, x)
		}
	}
	return nil
}
