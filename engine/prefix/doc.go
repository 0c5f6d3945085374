// Package prefix keeps snapshots of sequences by the tokens that led to them, so that a prompt that begins as an
// earlier one goes on from there instead of being processed again.
//
// Reuse is by exact prefix of token ids only, never by text: a snapshot answers a prompt whose first tokens are the
// snapshot's, all of them. A recurrent state cannot be cut back, so what counts is where snapshots were taken;
// [Policy] says where prompts are likely to part. A [Match] says how many tokens are reused and, when it is fewer
// than the prompt shares with what was seen before, why.
//
// # Budgets
//
// There is one budget of bytes for memory and one for disk. In memory a page that several snapshots share counts
// once, and the index is counted too. What leaves memory is written to disk if there is a budget for it, and is
// deleted from disk when it is the least valuable there.
//
// What is least valuable follows GreedyDual-Size-Frequency (Cherkasova, "Improving WWW proxies performance with
// greedy-dual-size-frequency caching policy", HP Laboratories 1998): an entry's value is
//
//	clock at its last use + uses x tokens saved / bytes freed
//
// and the clock rises to the value of each entry that is evicted. So frequency and cost per byte decide among entries
// in use, and whatever is not used any more is overtaken by newer entries, however valuable it was, without a time
// constant to tune. Tokens saved are those between the entry and the next shorter snapshot of the same prompt, since
// that one would take its place; bytes freed are those that no other snapshot shares.
//
// # Files
//
// A snapshot on disk is one file, named by the hash of model, format and tokens. It is written under a temporary
// name, synced, renamed, and its folder synced, so that a process that is killed leaves a whole file or a temporary
// one that the next start removes. At the start only headers and token ids are read. A file that is damaged is
// deleted, one of another model or format is kept and only counted (it is the first to go), and a file that is not
// the cache's is left alone and reported.
//
// Several processes may use one folder. A temporary file is locked while it is written and only removed by others
// once it is not. A file may vanish at any time, which is a miss; one that is being read is not harmed by being
// deleted on systems where names and files are two things, and cannot be deleted elsewhere. Files that another
// process adds count against the budget and are left to that process.
//
// Whatever goes wrong with files costs reuse and nothing else: it is passed to [Config.Warn], and the request is
// processed from its first token.
package prefix
