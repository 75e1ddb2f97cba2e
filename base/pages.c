#include "pages.h"

#include <sys/mman.h>

void *holmes_pages_get(size_t bytes)
{
    void *pages = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (pages == MAP_FAILED)
        return NULL;
    madvise(pages, bytes, MADV_NOHUGEPAGE);
    return pages;
}

void holmes_pages_put(void *pages, size_t bytes)
{
    if (pages)
        munmap(pages, bytes);
}
