/* A TCP port that is free and stays so: below the range from which the kernel gives ports to those
 * who ask for any, so that no other program's connection takes it between its choice and its use.
 */
#ifndef HOLMES_TEST_FREE_PORT_H
#define HOLMES_TEST_FREE_PORT_H

#include <criterion/criterion.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

static inline uint16_t free_port(void)
{
    enum { LOWEST = 10000 };
    FILE *f = fopen("/proc/sys/net/ipv4/ip_local_port_range", "re");
    unsigned given_from = 32768;

    if (f) {
        if (fscanf(f, "%u", &given_from) != 1 || given_from < LOWEST + 1000)
            given_from = 32768;
        fclose(f);
    }
    /* Tests that run side by side begin their search in different places. */
    for (unsigned i = 0; i < given_from - LOWEST; i++) {
        unsigned port = LOWEST + ((unsigned)getpid() * 31 + i) % (given_from - LOWEST);
        struct sockaddr_in a = {.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)port),
                                .sin_addr.s_addr = htonl(INADDR_ANY)};
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        int rc = bind(fd, (struct sockaddr *)&a, sizeof a);

        close(fd);
        if (rc == 0)
            return (uint16_t)port;
    }
    cr_assert_fail("no free port below %u", given_from);
    return 0;
}

#endif
