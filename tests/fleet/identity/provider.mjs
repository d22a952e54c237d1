// An identity provider for tests: oidc-provider with two people, on a free port of 127.0.0.1. Prints its issuer.
// usage: node provider.mjs FOLDER_OF_OIDC_PROVIDER CALLBACK_URL CLIENT_SECRET
import { createServer } from 'node:http';
import { pathToFileURL } from 'node:url';

const [folder, callback, secret] = process.argv.slice(2);
const { default: Provider } = await import(pathToFileURL(`${folder}/node_modules/oidc-provider/lib/index.js`));

// What the provider knows of people; a test changes the groups of one with PUT /test/groups.
const groups = { alice: ['web-team', 'everybody'], bob: [] };

const server = createServer();
server.listen(0, '127.0.0.1', () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  const provider = new Provider(issuer, {
    clients: [{
      client_id: 'fleet',
      client_secret: secret,
      redirect_uris: [callback],
      grant_types: ['authorization_code', 'refresh_token'],
    }],
    claims: { email: ['email', 'email_verified'], groups: ['groups'], openid: ['sub'] },
    scopes: ['openid', 'offline_access', 'email', 'groups'],
    // Claims are in the token itself, as with other providers.
    conformIdTokenClaims: false,
    pkce: { required: () => true, methods: ['S256'] },
    issueRefreshToken: (_, client) => client.grantTypeAllowed('refresh_token'),
    rotateRefreshToken: true,
    findAccount: (_, id) => groups[id] && {
      accountId: id,
      claims: () => ({ sub: id, email: `${id}@example.org`, email_verified: true, groups: groups[id] }),
    },
  });
  const handle = provider.callback();
  server.on('request', (request, response) => {
    const found = /^\/test\/groups\/(\w+)\/(.*)$/.exec(request.url);
    if (found) {
      groups[found[1]] = found[2] ? found[2].split(',') : [];
      response.end();
    } else {
      handle(request, response);
    }
  });
  console.log(issuer);
});
// The provider prints notices whenever it likes, and the test reads one line.
process.stdout.on('error', () => {});
// The test has the other end of this pipe.
process.stdin.resume().on('end', () => process.exit(0));
