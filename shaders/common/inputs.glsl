// How weights and inputs are read: word by word from storage buffers, or with TEXELS four words at a time from texel buffers.
// llvmpipe of Mesa 22 goes around a loop over the lanes for a word of a storage buffer, and reads texels of four with a
// few vector instructions.
#ifndef INPUTS_GLSL
#define INPUTS_GLSL

#ifdef TEXELS
#define WORDS(at, name) layout(set = 0, binding = at) uniform usamplerBuffer name;
#define FLOATS(at, name) WORDS(at, name)
#define FOUR(name, i) texelFetch(name, int(i))
#else
#define WORDS(at, name) layout(set = 0, binding = at) readonly buffer name##_buffer { uint name[]; };
#define FLOATS(at, name) layout(set = 0, binding = at) readonly buffer name##_buffer { float name[]; };
#endif

#endif
