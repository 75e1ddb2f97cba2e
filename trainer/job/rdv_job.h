/* The rendezvous server without its sockets: who has joined, what they put and wait for, and the
 * meaning of every frame. One thread. */
#ifndef HOLMES_RDV_JOB_H
#define HOLMES_RDV_JOB_H

#include "rdv_peer.h"
#include "rdv_store.h"

struct holmes_rdv_member {
    struct holmes_rdv_peer *peer; /* NULL: not connected (yet, or any more) */
    bool seen, left;
    char host[HOLMES_RDV_HOST_MAX];
    uint32_t pid;
};

struct holmes_rdv_job {
    int nranks;
    struct holmes_rdv_key key;
    struct holmes_rdv_store *store;
    struct holmes_list peers;
    struct holmes_rdv_member *members; /* by rank */
    int nstrangers, npeers;
    char aborted[HOLMES_RDV_TEXT_MAX]; /* why; "": it is well */
};

/* 0 or -ENOMEM; holmes_rdv_job_fini is right after both. */
int holmes_rdv_job_init(struct holmes_rdv_job *j, const char *secret, int nranks);
void holmes_rdv_job_fini(struct holmes_rdv_job *j);

/* A stranger more, who has the job's memory; fd < 0: none. NULL: no memory. */
struct holmes_rdv_peer *holmes_rdv_job_add(struct holmes_rdv_job *j, int fd);
/* Handles the whole frames of its input; false when the next one is longer than it may be. */
bool holmes_rdv_job_frames(struct holmes_rdv_job *j, struct holmes_rdv_peer *p);
/* Its connection is over, which aborts the job unless it left before. Frees it. */
void holmes_rdv_job_close(struct holmes_rdv_job *j, struct holmes_rdv_peer *p);
void holmes_rdv_job_abort(struct holmes_rdv_job *j, int rank, const char *reason);

#endif
