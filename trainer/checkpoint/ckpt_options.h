/* Which options a run that goes on may change; tests hold these lists to the table of options. Both
 * end with NULL. */
#ifndef HOLMES_CKPT_OPTIONS_H
#define HOLMES_CKPT_OPTIONS_H

extern const char *const holmes_ckpt_fixed[]; /* not at all */
extern const char *const holmes_ckpt_free[];  /* as one likes, unsaid */

#endif
