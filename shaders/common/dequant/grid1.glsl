// What a level 0 stands for: the levels 0, 1, 2 are -1, 0, 1, shifted by -0.125 where the bit is set and by 0.125
// where not.
float lowest(uint minus) { return minus != 0u ? -1.125 : -0.875; }
