/* The folder that checkpoints lie in. Whole ones are DIR/step-NNNNNNNN; what is being written is
 * called step-NNNNNNNN.partial and what is being removed .deleted, so that neither is ever taken
 * for one: the names change by rename(2) alone. All return 0 or a negative errno with a sentence.
 */
#ifndef HOLMES_CKPT_FOLDER_H
#define HOLMES_CKPT_FOLDER_H

#include <stdbool.h>
#include <stddef.h>

#define HOLMES_CKPT_PATH_MAX 1024

struct holmes_ckpt_entry {
    int step;
    char name[32]; /* in the folder */
};

/* The whole ones, oldest first; the caller frees *out. A folder that is not there has none. */
int holmes_ckpt_list(const char *dir, struct holmes_ckpt_entry **out, int *count, char *why,
                     size_t why_len);

/* What --resume means: `which` is a checkpoint, or a folder of them whose newest is taken, or
 * "latest": the newest of `save`. *out is empty when "latest" finds none: a run that begins. */
int holmes_ckpt_locate(const char *which, const char *save, char *out, size_t len, char *why,
                       size_t why_len);

/* Makes DIR if need be, takes its lock, so that no two runs write there (*lock_fd, to be closed;
 * -1 where the file system has no locks), and removes what dead runs left. The checkpoints that are
 * there must be those that lead to `resumed`, the one this run goes on from (NULL: none). */
int holmes_ckpt_claim(const char *dir, const char *resumed, int *lock_fd, char *why,
                      size_t why_len);

/* The three steps of a new one: an empty .partial; its name, durably; the oldest beyond `keep`
 * gone. */
int holmes_ckpt_begin(const char *dir, int step, char *partial, size_t len, char *why,
                      size_t why_len);
int holmes_ckpt_commit(const char *dir, int step, const char *partial, char *why, size_t why_len);
int holmes_ckpt_prune(const char *dir, int keep, char *why, size_t why_len);

/* fsync of a folder. */
int holmes_ckpt_sync_folder(const char *path);

#endif
