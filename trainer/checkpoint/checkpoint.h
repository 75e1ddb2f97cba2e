/* Checkpoints: a whole training state in a folder, written by all ranks together and read by ranks
 * of any other split. Tensors are addressed by name and element of the whole tensor.
 * docs/checkpoint.md says what is in the folder and what a run may change when it goes on. */
#ifndef HOLMES_CHECKPOINT_H
#define HOLMES_CHECKPOINT_H

#include "ckpt_folder.h"
#include "config.h"
#include "manifest.h"
#include "shard.h"

/* --- reading -----------------------------------------------------------------------------------
 */

struct holmes_ckpt;

/* Reads the manifest; shards are opened as their tensors are asked for. Sentences in `why` name the
 * file, and the tensor. Not thread safe. */
int holmes_ckpt_open(const char *path, struct holmes_ckpt **out, char *why, size_t why_len);
void holmes_ckpt_close(struct holmes_ckpt *c); /* NULL is fine */
const struct holmes_manifest *holmes_ckpt_manifest(const struct holmes_ckpt *c);
const char *holmes_ckpt_path(const struct holmes_ckpt *c);
uint64_t holmes_ckpt_bytes_read(const struct holmes_ckpt *c);

/* What the next reads are of: a part of a tensor, which must have this shape (rows 0: a vector). */
int holmes_ckpt_select(struct holmes_ckpt *c, const char *tensor, enum holmes_part part, int rows,
                       int cols, char *why, size_t why_len);
/* Elements `first` and on of it. Every byte that is read has been checked against its checksum. */
int holmes_ckpt_read(struct holmes_ckpt *c, uint64_t first, size_t count, float *out, char *why,
                     size_t why_len);

/* --- going on ----------------------------------------------------------------------------------
 */

/* The data of a run: what must be the same for a step to see the same sequences. */
struct holmes_ckpt_data {
    uint64_t bytes;
    char sum[17];
};
/* Size and a hash over samples of the file, spread over it: sees other data, not every typing
 * error. PREFIX stands for PREFIX.bin and PREFIX.idx. */
int holmes_ckpt_data_of(const char *path, struct holmes_ckpt_data *out, char *why, size_t why_len);

/* Whether a run with this configuration can go on from there: -EINVAL with a sentence that has both
 * values where model, data, seed or batch contradict. *changes: an object of the options that are
 * others now and have a say in the result, name -> [then, now]; the caller's to free. */
int holmes_ckpt_fits(const struct holmes_ckpt *ck, const struct holmes_config *c,
                     const struct holmes_ckpt_data *data, json_t **changes, char *why,
                     size_t why_len);

/* --- writing -----------------------------------------------------------------------------------
 */

/* The ranks that save together. `barrier` returns 0 when all of them have called it. */
struct holmes_ckpt_team {
    int rank, world;
    int (*barrier)(void *ctx, const char *name);
    void *ctx;
};

struct holmes_saver;

/* On rank 0 the folder is claimed. `resumed`: the checkpoint that the run goes on from, or NULL.
 * The configuration must outlive the saver. */
int holmes_saver_open(const struct holmes_config *c, const struct holmes_ckpt_data *data,
                      const struct holmes_ckpt_team *team, const char *resumed,
                      struct holmes_saver **out, char *why, size_t why_len);
void holmes_saver_close(struct holmes_saver *s); /* NULL is fine */

struct holmes_saved {
    char path[HOLMES_CKPT_PATH_MAX + 64];
    uint64_t bytes; /* of all shards; on rank 0 */
    double seconds;
    bool barrier_failed; /* another rank's failure, or a wait that was too long */
};

/* Collective. When it returns 0 on rank 0 the checkpoint is on the disk under its name, and those
 * beyond --keep are gone. After a failure `why` has a sentence, unless barrier_failed; the last
 * whole checkpoint is as it was. `copy`: from the pieces' memory to the host's. */
int holmes_saver_save(struct holmes_saver *s, int step, const struct holmes_piece *pieces,
                      int count, void (*copy)(void *to, const void *from, size_t bytes),
                      struct holmes_saved *out, char *why, size_t why_len);

#endif
