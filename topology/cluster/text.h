/* Numbers in files of people: all of the text is the number, or it is none. */
#ifndef HOLMES_TEXT_H
#define HOLMES_TEXT_H

#include <stddef.h>

/* -EINVAL when the text is no number (decimal, no sign) or out of bounds; *out is then untouched.
 */
int holmes_text_number(const char *text, double low, double high, double *out);
int holmes_text_whole(const char *text, int low, int high, int *out);
/* The shortest text that reads back as this number, into `buf` (32 bytes), which it returns. */
const char *holmes_number_text(double number, char *buf, size_t len);

#endif
